"""Sentence pairs with people's scores: the one form that every data set is read into, and the published ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float

from jaxvec.errors import InputError


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sentence pairs and their scores.

    Attributes:
        first, second: the sentences.
        scores: float64 [n], higher is more alike; None where the split was released without.
    """

    first: list[str]
    second: list[str]
    scores: Float[np.ndarray, " n"] | None = None

    def __post_init__(self):
        lengths = {len(self.first), len(self.second), len(self.first if self.scores is None else self.scores)}
        if len(lengths) != 1:
            raise InputError(
                f"first, second and scores have {sorted(lengths)} entries; expected equal numbers"
            )

    def __len__(self) -> int:
        return len(self.first)

    @property
    def sentences(self) -> list[str]:
        """Every first sentence, then every second one; what occurs twice is there twice."""
        return [*self.first, *self.second]


@dataclass(frozen=True, eq=False)
class Task:
    """A data set: what is scored, in its subsets, and the other splits, which may be fitted on.

    Attributes:
        name: "stsb", "sts12", … or the name of the user's file.
        split: the split that is scored: "test", unless that has no scores.
        subsets: the scored pairs by subset; most tasks have one, named as the split.
        others: the other splits that were found, by name.
        source: where it was read from.

    Example:
        >>> pairs = Pairs(["A dog barks.", "It rains."], ["A dog is loud.", "Snow."], np.array([4.0, 1.0]))
        >>> task = Task("mine", "test", {"test": pairs}, source="my head")
        >>> len(task), task.sentences[2], task.binary
        (2, 'A dog is loud.', False)
    """

    name: str
    split: str
    subsets: Mapping[str, Pairs]
    others: Mapping[str, Pairs] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self):
        if not sum(map(len, self.subsets.values())):
            raise InputError(f"{self.source or self.name}: no scored pair; expected one or more")

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """Scored pairs of each subset."""
        return [len(pairs) for pairs in self.subsets.values()]

    @property
    def scored(self) -> Pairs:
        """All scored pairs, subset after subset."""
        parts = list(self.subsets.values())
        return Pairs(
            [text for part in parts for text in part.first],
            [text for part in parts for text in part.second],
            np.concatenate([part.scores for part in parts]),
        )

    @property
    def sentences(self) -> list[str]:
        """Both sentences of every scored pair: all first ones, then all second ones."""
        return self.scored.sentences

    @property
    def scores(self) -> Float[np.ndarray, " n"]:
        """float64 [n], aligned with the two halves of `sentences`."""
        return self.scored.scores

    def scoring(self, split: str) -> "Task":
        """The same data set with another split scored, such as "dev".

        Raises:
            InputError: no such split with scores, or a task of subsets.
        """
        pairs = self.others.get(split)
        if split == self.split:
            return self
        if pairs is None or pairs.scores is None or self.split not in self.subsets:
            raise InputError(
                f"{self.source or self.name}: no {split} split with scores; found {', '.join(self.others)}"
            )
        others = {name: kept for name, kept in self.others.items() if name != split}
        return replace(self, split=split, subsets={split: pairs}, others=others | dict(self.subsets))

    @property
    def binary(self) -> bool:
        """Whether the scores are 0 and 1, so that AUC and accuracy are defined."""
        return bool(np.isin(self.scores, (0, 1)).all())


@dataclass(frozen=True)
class Published:
    """What is known of a published data set.

    Attributes:
        title: as papers write it.
        folders: names that its folder has in the releases, the first being the most usual.
        counts: pairs of each split that can be relied on; for a task of subsets, of each subset.
        subsets: whether `counts` are of subsets, which are scored together.
        tfds: its name in tensorflow-datasets, if any.
        hub: its name on the Hugging Face hub, if any.
        scored: the split that is scored.
    """

    title: str
    folders: tuple[str, ...]
    counts: Mapping[str, int]
    subsets: bool = False
    tfds: str | None = None
    hub: str | None = None
    scored: str = "test"


def _semeval(year: int, **counts: int) -> Published:
    folders = (f"STS{year}", f"STS{year}-en-test", f"STS{year}-test", f"STS/STS{year}-en-test")
    named = {name.replace("_", "-").replace("surprise-", "surprise."): n for name, n in counts.items()}
    return Published(f"STS{year}", folders, named, subsets=True)


PUBLISHED: dict[str, Published] = {
    "stsb": Published(
        "STS-B",
        ("STSB", "STSBenchmark", "stsbenchmark", "STS-B", "STS/STSBenchmark"),
        {"train": 5749, "dev": 1500, "test": 1379},
        tfds="glue/stsb",
        hub="mteb/stsbenchmark-sts",
    ),
    "sts12": _semeval(12, MSRpar=750, MSRvid=750, SMTeuroparl=459, surprise_OnWN=750, surprise_SMTnews=399),
    "sts13": _semeval(13, FNWN=189, headlines=750, OnWN=561),
    "sts14": _semeval(14, deft_forum=450, deft_news=300, headlines=750, images=750, OnWN=750, tweet_news=750),
    "sts15": _semeval(15, answers_forums=375, answers_students=750, belief=375, headlines=750, images=750),
    "sts16": _semeval(
        16, answer_answer=254, headlines=249, plagiarism=230, postediting=244, question_question=209
    ),
    "sickr": Published("SICK-R", ("SICK",), {"train": 4500, "dev": 500, "test": 4927}),
    "lcqmc": Published(
        "LCQMC", ("LCQMC",), {"train": 238_766, "dev": 8802, "test": 12_500}, hub="C-MTEB/LCQMC"
    ),
    "atec": Published("ATEC", ("ATEC",), {"test": 20_000}, hub="C-MTEB/ATEC"),
    "bq": Published("BQ", ("BQ",), {"train": 100_000, "dev": 10_000, "test": 10_000}, hub="C-MTEB/BQ"),
    "pawsx-zh": Published(
        "PAWS-X-zh", ("PAWSX", "PAWS-X", "x-final/zh", "zh"), {"dev": 2000, "test": 2000}, hub="C-MTEB/PAWSX"
    ),
    "stsb-zh": Published(
        "STS-B-zh", ("STS-B-zh", "STS-B"), {"train": 5231, "dev": 1458, "test": 1361}, hub="C-MTEB/STSB"
    ),
    "qnli": Published("QNLI", ("QNLI",), {"dev": 5463}, tfds="glue/qnli", scored="dev"),
    "snli": Published("SNLI", ("SNLI",), {"dev": 9842, "test": 9824}),
}
ENGLISH = ("stsb", "sts12", "sts13", "sts14", "sts15", "sts16", "sickr")
CHINESE = ("atec", "bq", "lcqmc", "pawsx-zh", "stsb-zh")


def canonical(name: str) -> str | None:
    """The key in `PUBLISHED` of a name in any spelling, or None: "STS-B-zh" and "stsb_zh" are "stsb-zh".

    >>> canonical("SICK-R"), canonical("STS-B"), canonical("pairs.tsv")
    ('sickr', 'stsb', None)
    """
    letters = _letters(name)
    return next((known for known in PUBLISHED if _letters(known) == letters), None)


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def make_task(name: str, splits: Mapping[str, Pairs], source: str) -> Task:
    """A published data set from its splits (or, for SemEval years, its subsets), with the row counts checked.

    Args:
        name: a key of `PUBLISHED`.
        splits: "train", "dev", "test", as far as found; for a task of subsets, every subset.
        source: where they were read from.

    Raises:
        InputError: a split has another number of pairs than was published, or none of them has scores.
    """
    known = PUBLISHED[name]
    for split, pairs in splits.items():
        expected = known.counts.get(split, len(pairs))
        if len(pairs) != expected:
            raise InputError(
                f"{source}: {known.title} {split} has {len(pairs)} pairs; the published one has {expected}. Figures on "
                "it would not be comparable: fetch it again, or give the file itself as --task to score it as your own"
            )
    if known.subsets:
        if missing := [subset for subset in known.counts if subset not in splits]:
            raise InputError(f"{source}: {known.title} lacks {', '.join(missing)}")
        return Task(name, "test", {subset: splits[subset] for subset in known.counts}, source=source)
    # GLUE keeps the scores of its test splits to itself, and everybody reports dev instead.
    for split in (known.scored, "dev") if known.tfds else (known.scored,):
        if split in splits and splits[split].scores is not None:
            others = {other: pairs for other, pairs in splits.items() if other != split}
            return Task(name, split, {split: splits[split]}, others, source)
    raise InputError(
        f"{source}: {known.title} has no {known.scored} split with scores (some releases keep them back); found "
        f"{', '.join(splits)}"
    )
