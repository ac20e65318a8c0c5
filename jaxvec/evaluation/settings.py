"""What a calibration is fitted on: the settings of the papers, and any text file."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from jaxvec.errors import InputError
from jaxvec.evaluation.tasks import Task
from jaxvec.tablefiles import read_columns
from jaxvec.textfiles import TABLES, read_sentences

OF_THE_TASK = ("self", "target", "train")
SETTINGS = (*OF_THE_TASK, "nli")
_NLI = {
    "SNLI": ("snli_1.0_train.jsonl", "snli_1.0_dev.jsonl", "snli_1.0_test.jsonl"),
    "snli_1.0": ("snli_1.0_train.jsonl", "snli_1.0_dev.jsonl", "snli_1.0_test.jsonl"),
    "MNLI": ("multinli_1.0_train.jsonl",),
    "multinli_1.0": ("multinli_1.0_train.jsonl",),
}


@dataclass(frozen=True, eq=False)
class FitText:
    """Sentences to fit on, duplicates kept, as both papers' code does.

    Attributes:
        setting: "self", "target", "train", "nli", or the file.
        sentences: the texts.
        parts: which splits or files they are.
    """

    setting: str
    sentences: list[str] = field(repr=False)
    parts: tuple[str, ...]


def fitting_text(task: Task, setting: str, data: str | Path | None) -> FitText:
    """What a calibration for `task` is fitted on.

    Args:
        task: the task that will be scored.
        setting: "self": both sentences of every scored pair, the subsets of a year pooled. "target": every
            split of the task that is there, scores unseen, as in both papers. "train": the train split. "nli":
            premises and hypotheses of SNLI and MultiNLI, as far as they are in `data`. Else a plain text file,
            one sentence a line.
        data: the root folder of the data sets, for "nli".

    Raises:
        InputError: the task has no train split, there is no NLI text, or no such file, or one of less than 2
            sentences.

    >>> import numpy as np
    >>> from jaxvec.evaluation.tasks import Pairs
    >>> task = Task("t", "test", {"test": Pairs(["a"], ["b"], np.ones(1))}, {"train": Pairs(["c"], ["a"])})
    >>> fitting_text(task, "self", None).sentences, fitting_text(task, "target", None).sentences
    (['a', 'b'], ['c', 'a', 'a', 'b'])
    """
    if setting == "self":
        return FitText(setting, task.sentences, tuple(task.subsets))
    if setting == "target":
        texts = [text for pairs in task.others.values() for text in pairs.sentences]
        return FitText(setting, texts + task.sentences, (*task.others, *task.subsets))
    if setting == "train":
        if "train" not in task.others:
            found = ", ".join([*task.others, task.split])
            raise InputError(f"--fit train: {task.name} has no train split here ({task.source}: {found})")
        return FitText(setting, task.others["train"].sentences, ("train",))
    if setting == "nli":
        return read_nli(data)
    if setting.lower().removesuffix(".gz").endswith(TABLES):
        raise InputError(f"--fit {setting}: expected {', '.join(SETTINGS)} or a plain text file, not a table")
    try:
        sentences = list(read_sentences(setting))
    except InputError as error:
        raise InputError(f"--fit: {error}; expected {', '.join(SETTINGS)} or a text file") from None
    if len(sentences) < 2:
        raise InputError(
            f"--fit {setting}: it holds {len(sentences)} sentence(s); expected 2 or more to fit on"
        )
    return FitText(setting, sentences, (setting,))


def shared_texts(
    tasks: Iterable[Task], settings: Iterable[str], data: str | Path | None
) -> dict[str, FitText]:
    """The texts of those settings that no task brings along, each read once; errors as for `fitting_text`."""
    shared: dict[str, FitText] = {}
    for task in tasks:
        for setting in settings:
            if setting not in shared:
                text = fitting_text(task, setting, data)
                if setting not in OF_THE_TASK:
                    shared[setting] = text
    return shared


def normal_setting(setting: str) -> str:
    """One spelling for the settings that are the same text: a file by its full path.

    >>> normal_setting("nli"), normal_setting("/no/../corpus.txt")
    ('nli', '/corpus.txt')
    """
    return setting if setting in (*SETTINGS, "-") else os.path.realpath(setting)


def read_nli(data: str | Path | None) -> FitText:
    """Premises and hypotheses found under the root folder, every pair's both sentences, duplicates kept.

    Read are `SNLI/s1.*` with `s2.*` (aligned lines), the released `snli_1.0_*.jsonl` and
    `multinli_1.0_train.jsonl`, and sentence-transformers' `AllNLI.tsv.gz`.
    """
    root = Path(data or ".")
    sentences, parts = [], []
    for folder, files in _NLI.items():
        for first in sorted((root / folder).glob("s1.*")):
            for file in (first, first.with_name(first.name.replace("s1.", "s2.", 1))):
                sentences += read_sentences(file)
                parts.append(f"{folder}/{file.name}")
        for name in files:
            if (file := root / folder / name).is_file():
                sentences += [
                    text for _, pair in read_columns(file, ("sentence1", "sentence2")) for text in pair
                ]
                parts.append(f"{folder}/{name}")
    if (file := root / "AllNLI.tsv.gz").is_file():
        sentences += [*read_sentences(file, "sentence1"), *read_sentences(file, "sentence2")]
        parts.append(file.name)
    if not sentences:
        looked = ", ".join(
            [*(f"{folder}/s1.* or {files[0]}" for folder, files in _NLI.items()), "AllNLI.tsv.gz"]
        )
        raise InputError(f"--fit nli: no NLI text under {root}/; looked for {looked}")
    return FitText("nli", sentences, tuple(parts))
