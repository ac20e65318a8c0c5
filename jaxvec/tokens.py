"""Text → ragged token ids, once, in parallel, by the model's own tokenizer."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxvec.errors import InputError

_AT_A_TIME = 1_024  # texts


@dataclass(frozen=True)
class TokenIds:
    """Token ids of several sentences, end to end.

    Attributes:
        values: int32 [total tokens].
        offsets: int64 [sentences + 1]; sentence i is `values[offsets[i]:offsets[i + 1]]`.
        truncated: how many sentences lost tokens to the length limit.
    """

    values: Any
    offsets: Any
    truncated: int = 0

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of every sentence, int64 [sentences]."""
        return np.diff(self.offsets)

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]]) -> "TokenIds":
        """Joins lists of ids.

        >>> TokenIds.of([[101, 102], [101, 7592, 102]]).offsets
        array([0, 2, 5])
        """
        offsets = np.zeros(len(sentences) + 1, np.int64)
        np.cumsum([len(s) for s in sentences], out=offsets[1:])
        values = np.fromiter((i for s in sentences for i in s), np.int32, int(offsets[-1]))
        return cls(values, offsets)

    @classmethod
    def join(cls, parts: Sequence["TokenIds"]) -> "TokenIds":
        """Those of all the parts, one after another."""
        offsets = np.zeros(1 + sum(len(part.offsets) - 1 for part in parts), np.int64)
        np.cumsum(np.concatenate([part.lengths for part in parts]), out=offsets[1:])
        values = np.concatenate([part.values for part in parts])
        return cls(values, offsets, sum(part.truncated for part in parts))


class Tokenizer:
    """The tokenizer stored in a model folder.

    A `tokenizer.json` is read as it is; anything else (a `vocab.txt`, a SentencePiece file) is left to
    transformers, which knows how each family builds its tokenizer from those.

    Args:
        folder: the model folder.
        max_length: tokens of a sentence, special tokens included; the rest is cut and counted.
        lower_case: lower-case the text first, as a sentence-transformers folder may ask.

    Attributes:
        vocab_size: embedding rows that its ids need: one more than the highest, whatever gaps there are below.

    Raises:
        InputError: no usable tokenizer in the folder, or `max_length` leaves no room for text.
    """

    def __init__(self, folder: Path, max_length: int, lower_case: bool = False):
        self._backend = _load_backend(folder)
        self._backend.no_padding()
        self._backend.no_truncation()
        self.lower_case = lower_case
        self.vocab_size = 1 + max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)
        try:
            mask = (probe := self._backend.encode("a", add_special_tokens=True)).special_tokens_mask
        except Exception as error:  # the library raises bare Exception
            raise InputError(f"{folder}: its tokenizer does not work ({error})") from None
        text = [i for i, special in enumerate(mask) if not special] or [len(mask)]
        self._prefix = probe.ids[: text[0]]
        self._suffix = probe.ids[text[-1] + 1 :]
        if max_length <= (special := len(self._prefix) + len(self._suffix)):
            raise InputError(
                f"max_length is {max_length}, but {special} special tokens come with every sentence; "
                f"give at least {special + 1}"
            )
        self.max_length = max_length
        self._left = _setting(folder, "truncation_side") == "left"

    def digest(self) -> str:
        """Tells tokenizers apart: by their vocabulary, and by what they make of a text full of difficulties."""
        probe = "A naïve Café—it's 3.14 % of 漢字\u00a0, ﬁne?  <s> [SEP] ßtraße\t\U0001f600"
        made = self._backend.encode(probe.lower() if self.lower_case else probe).ids
        vocabulary = sorted(self._backend.get_vocab(with_added_tokens=True).items())
        return hashlib.blake2b(repr((made, vocabulary)).encode(), digest_size=16).hexdigest()

    def __call__(self, sentences: Sequence[Any], first_row: int = 0) -> TokenIds:
        """The ids of every sentence, special tokens included; in parallel over the CPU's cores.

        Args:
            sentences: the texts; blank ones become a sentence of special tokens alone.
            first_row: row number of the first sentence, for error messages.

        Raises:
            InputError: an entry is not a `str` or holds a lone surrogate; its row is named.
        """
        if not all(isinstance(s, str) for s in sentences):
            refuse_bad_rows(sentences, first_row)  # before the library takes a tuple for a pair of sentences
        # A few at a time: the library's objects take some hundred times the room of the ids.
        return TokenIds.join(
            [
                self._encode(sentences[start : start + _AT_A_TIME], first_row + start)
                for start in range(0, max(1, len(sentences)), _AT_A_TIME)
            ]
        )

    def _encode(self, sentences: Sequence[str], first_row: int) -> TokenIds:
        texts = [s.lower() for s in sentences] if self.lower_case else list(sentences)
        try:
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # the library raises bare Exception
            refuse_bad_rows(sentences, first_row)
            raise InputError(f"the tokenizer failed on a row from {first_row} on: {error}") from error
        room = self.max_length - len(self._prefix) - len(self._suffix)
        ids, truncated = [], 0
        for encoding in encodings:
            content = encoding.ids
            if len(content) > room:
                content = content[-room:] if self._left else content[:room]
                truncated += 1
            ids.append(self._prefix + content + self._suffix)
        if (
            not self._prefix
            and not self._suffix
            and (empty := [row for row, found in enumerate(ids) if not found])
        ):
            raise InputError(
                f"row {first_row + empty[0]} is blank, and this model's tokenizer adds no special tokens that could "
                "stand for it; leave it out"
            )
        found = TokenIds.of(ids)
        return TokenIds(found.values, found.offsets, truncated)


def _load_backend(folder: Path) -> Any:
    path = folder / "tokenizer.json"
    if path.is_file():
        from tokenizers import Tokenizer as Backend

        try:
            return Backend.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise InputError(f"{path}: not a readable tokenizer ({error})") from None
    if not any(folder.glob("vocab*")) and not any(folder.glob("*.model")):
        raise InputError(
            f"{folder}: no tokenizer there (looked for tokenizer.json, vocab.txt, vocab.json, *.model); "
            "add the tokenizer files that belong to the model"
        )
    from transformers import AutoTokenizer, BertTokenizer

    try:
        if (folder / "config.json").is_file():
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        else:
            tokenizer = BertTokenizer.from_pretrained(
                str(folder), do_lower_case=_lower_cases(folder), local_files_only=True
            )
    except Exception as error:
        raise InputError(
            f"{folder}: transformers cannot build a tokenizer from this folder ({error})"
        ) from None
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"{folder}: only a pure-Python tokenizer ({type(tokenizer).__name__}) fits this folder; "
            "save a tokenizer.json beside the model"
        )
    return tokenizer.backend_tokenizer


def _lower_cases(folder: Path) -> bool:
    """Whether a release of Google's, which does not say, is uncased: no ordinary word has a capital then."""
    stated = _setting(folder, "do_lower_case")
    if stated is not None:
        return bool(stated)
    words = (folder / "vocab.txt").read_text("utf-8").split("\n")
    return not any(word != word.lower() for word in words if not re.fullmatch(r"\[\w+\]\r?", word))


def _setting(folder: Path, key: str) -> Any:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text("utf-8")).get(key)
    except (ValueError, AttributeError) as error:
        raise InputError(f"{path}: not readable as JSON ({error})") from None


def refuse_bad_rows(sentences: Sequence[Any], first_row: int) -> None:
    """Refuses the first entry that is not valid text, and names its row."""
    for row, sentence in enumerate(sentences, first_row):
        if not isinstance(sentence, str):
            raise InputError(f"row {row} is {type(sentence).__name__}, expected str: {sentence!r:.60}")
        try:
            sentence.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"row {row} holds a lone surrogate (U+{ord(sentence[error.start]):04X} at character {error.start}), "
                "which is not valid text; decode the source with errors='replace' first"
            ) from None
