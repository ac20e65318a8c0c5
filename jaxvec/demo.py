"""A corpus that every Python holds, so that the first run needs neither data nor network."""

from __future__ import annotations

import keyword
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxvec.calibration.affine import whitening
from jaxvec.calibration.moments import Moments
from jaxvec.encoder import SentenceEncoder
from jaxvec.evaluation.isotropy import effective_rank, mean_cosine
from jaxvec.pooling import normalize

# Headings under which the language reference puts prose; any other line that ends in a colon announces code.
ADMONITION = re.compile(r"(Note|Tip|Warning|Caution|Important|See also|CPython implementation detail):")
LABEL = re.compile(
    r"(\*\*)?(Note|CPython implementation detail|(Changed in|Added in|New in|Deprecated since) version[^:]*):"
    r"(\*\*)? +"
)
BARE = re.compile(r"See |(Added|New) in version ")
BULLET = re.compile(r"(\*|\d+\.|\[\d+\]) +")
CODE = re.compile(r">>>|::=|^\.\.\. |^\+[-=]|^\||^==|-\[ ")
SENTENCE_END = re.compile(r'(?<!e\.g)(?<!i\.e)(?<!vs)(?<!cf)(?<!\b[A-Z])[.?!]["”’\')]*(?= +[^a-z ])')


def demo_sentences() -> list[str]:
    """Some 2,200 English sentences from the Python language reference, topic by topic, none twice.

    The text is `pydoc_data.topics`, which `help()` shows; headings, code, grammar, tables and markup are
    taken out. The list differs a little from one Python version to the next, never from run to run.

    Example:
        >>> sentences = demo_sentences()
        >>> "Assignments to __debug__ are illegal." in sentences
        True
    """
    from pydoc_data.topics import topics

    found = {}
    for _, text in sorted(topics.items()):
        for paragraph in _paragraphs(text):
            for sentence in _sentences(paragraph):
                found[sentence] = None
    return list(found)


def _paragraphs(text: str) -> Iterator[str]:
    """The prose of a topic, one paragraph or list item at a time, on one line each."""
    code_indent = None  # the depth of the code block we are in
    announced = None  # the depth of the line that announced code
    for block in re.split(r"\n[ ]*\n", text):
        lines = [line for line in block.split("\n") if line.strip()]
        if not lines:
            continue
        indent = _indent(lines[0])
        if announced is not None and indent > announced and not BULLET.match(lines[0].strip()):
            code_indent = indent
        announced = None
        if code_indent is not None and indent >= code_indent:
            continue
        code_indent = None
        last = lines[-1].rstrip()
        if last.endswith(":") and not ADMONITION.fullmatch(lines[0].strip()):
            announced = indent
        if any(CODE.search(line.strip()) for line in lines):
            continue
        if len(lines) > 1 and not BULLET.match(lines[0].strip()) and _indent(lines[1]) > indent:
            lines = lines[1:]  # the term of a definition list, or the signature of a method
        items: list[list[str]] = []
        for line in map(str.strip, lines):
            marker = BULLET.match(line)
            if marker or not items:
                items.append([])
            items[-1].append(line[marker.end() :] if marker else line)
        yield from map(_joined, items)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _joined(lines: list[str]) -> str:
    # The reference is also broken after the hyphens of its words.
    return re.sub(r"(?<=[a-z])- (?=[a-z])(?!and |or )", "-", " ".join(lines))


def _without_markup(text: str) -> str:
    text = re.sub(r"\*\*(\S(?:[^*\n]*\S)?)\*\*", r"\1", text)
    text = re.sub(r"(?<![\w\"'*])\*(\w(?:[^*\n]*\w)?)\*(?![\w*])", r"\1", text)
    text = re.sub(r"^\*(?=\w)|(?<=[.?!])\*$", "", text)  # emphasis that spans sentences
    text = re.sub(r" \[\d+\]", "", text)
    text = re.sub(r'“"([^"]+)"”', r'"\1"', text)
    text = re.sub(r'"([^"]+)"', _unquoted, text)
    return re.sub(r" +", " ", text).strip()


def _unquoted(match: re.Match[str]) -> str:
    """Names and calls read better without the quotes that mark code; keywords and expressions need them."""
    code = match[1]
    name = re.fullmatch(r"(@|-+|\.)?[\w.-]*\w(\(\))?", code)
    if name and (code in ("True", "False", "None") or not keyword.iskeyword(code)):
        return code
    return code if re.fullmatch(r"'[^']*'", code) else match[0]


def _sentences(paragraph: str) -> Iterator[str]:
    text = LABEL.sub("", paragraph)
    start = 0
    for end in [*(m.end() for m in SENTENCE_END.finditer(text)), len(text)]:
        part = text[start:end].strip()
        if part.count("(") > part.count(")") and end < len(text):
            continue  # the end of a sentence inside parentheses
        start = end
        if whole := re.fullmatch(r"\(((?:[^()]|\([^()]*\))*)\)\.?", part):
            part = whole[1]
        sentence = _without_markup(part)
        # A list item that is a fragment begins in lower case; a name in markup may begin a sentence.
        if re.match(r"[A-Z*\"'“‘(]", part) and _is_sentence(sentence):
            yield sentence


def _is_sentence(text: str) -> bool:
    letters = sum(c.isalpha() or c == " " for c in text)
    return (
        20 <= len(text) <= 400
        and re.search(r"[.?!][)”\"']*$", text) is not None
        and not BARE.match(text)
        and '""' not in text
        and len(text.split()) >= 5
        and letters >= 0.8 * len(text)
    )


QUESTIONS = (
    "How do I get the last element of a list?",
    "What happens when a name cannot be found?",
    "How can I run code no matter whether an error occurred?",
    "Which functions are called when two objects are compared?",
)


@dataclass(frozen=True)
class Search:
    """One encoder's view of the corpus: how isotropic its vectors are, and what it finds.

    Attributes:
        name: what the vectors are.
        dim: their width.
        mean_cosine: of all pairs of different sentences; 0 is isotropic.
        effective_rank: how many dimensions they use, see `isotropy.effective_rank`: `dim` is isotropic.
        answers: for each question the nearest sentences, best first, as (cosine, sentence).
    """

    name: str
    dim: int
    mean_cosine: float
    effective_rank: float
    answers: dict[str, list[tuple[float, str]]]


@dataclass(frozen=True)
class DemoReport:
    """What the demonstration measured and found."""

    sentences: int
    tokens: int
    useful_tokens: float
    seconds: float
    searches: tuple[Search, ...]

    def figures(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self)

    def text(self) -> str:
        """Everything for a person to read."""
        lines = [
            f"{self.sentences:,} sentences of the Python language reference, {self.tokens:,} tokens, in "
            f"{self.seconds:.2f} s: {self.sentences / self.seconds:,.0f} sentences/s, "
            f"{self.tokens / self.seconds:,.0f} tokens/s",
            f"{1 - self.useful_tokens:.1%} of the computed tokens were padding",
        ]
        for number, search in enumerate(self.searches):
            if number == 1:
                lines += [
                    "",
                    "What calibration does, on hidden states that nobody tuned for cosine; compare the two:",
                ]
            lines += [
                "",
                f"{search.name}: mean cosine {search.mean_cosine:.2f}, "
                f"effective rank {search.effective_rank:.0f} of {search.dim}",
            ]
            for question, nearest in search.answers.items():
                lines.append(f"  {question}")
                lines += [f"    {cosine:.2f}  {sentence}" for cosine, sentence in nearest]
        return "\n".join(lines)


def run_demo(encoder: SentenceEncoder, questions: Sequence[str] | None = None) -> DemoReport:
    """Encodes the demonstration corpus, answers questions by nearest neighbours, and calibrates.

    What calibration does shows on hidden states that nobody tuned for cosine, so it is shown on an inner layer.

    Args:
        encoder: any encoder without calibration.
        questions: None asks four of our own.
    """
    sentences, asked = demo_sentences(), list(questions or QUESTIONS)
    packing = encoder.pack(sentences)
    encoder.warm_up(packing)
    start = time.perf_counter()
    vectors = encoder.encode(sentences, show_progress=bool(sys.stderr and sys.stderr.isatty()))
    seconds = time.perf_counter() - start

    inner = encoder.with_layers(max(1, encoder.config.num_layers * 2 // 3))
    raw = inner.encode(sentences)
    whiten = whitening(Moments.of(raw), dim=min(128, inner.dim))
    return DemoReport(
        sentences=len(sentences),
        tokens=packing.tokens,
        useful_tokens=packing.tokens / packing.computed,
        seconds=seconds,
        searches=(
            _search("the model's own vectors", encoder, vectors, sentences, asked),
            _search(f"hidden state {inner.layers[0]}, raw", inner, raw, sentences, asked),
            _search(
                f"hidden state {inner.layers[0]}, whitened",
                inner.with_calibration(whiten),
                np.asarray(whiten(raw)),
                sentences,
                asked,
            ),
        ),
    )


def _search(
    name: str, encoder: SentenceEncoder, vectors: np.ndarray, sentences: list[str], questions: list[str]
) -> Search:
    answers = {}
    for question, cosines in zip(
        questions, encoder.similarity(encoder.encode(questions), vectors), strict=True
    ):
        best = np.argsort(-cosines, kind="stable")[:2]
        answers[question] = [(round(float(cosines[i]), 4), sentences[i]) for i in best]
    return Search(
        name=name,
        dim=encoder.dim,
        mean_cosine=mean_cosine(Moments.of(normalize(jnp.asarray(vectors)))),
        effective_rank=effective_rank(Moments.of(vectors)),
        answers=answers,
    )
