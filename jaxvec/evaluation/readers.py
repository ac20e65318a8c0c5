"""Data sets on disk, in the layouts they were released in, and any user's table → Task."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxvec.errors import InputError
from jaxvec.evaluation.tasks import PUBLISHED, Pairs, Published, Task, canonical, make_task
from jaxvec.tablefiles import read_columns
from jaxvec.textfiles import TABLES

Row = tuple[str, str, str | None]


def read_task(name: str, data: str | Path | None = None, columns: str | None = None) -> Task:
    r"""A data set by name or a user's file, as a `Task`.

    Args:
        name: a key of `tasks.PUBLISHED` in any spelling ("stsb", "STS-B", "SICK-R", …), or a file named .tsv,
            .csv, .jsonl or .parquet.
        data: the root folder (one folder a task, as released, or SentEval's), one task's folder, "tfds" or "hub"
            to fetch it with tensorflow-datasets or from the Hugging Face hub, or "tfds:FOLDER" for data that
            tensorflow-datasets prepared there. Not needed for a file.
        columns: for a file: the two text columns and the score's, by name or by number from 1 ("2,3,1"); None
            is "sentence1,sentence2,score".

    Raises:
        InputError: nothing of that name, and where it was looked for; a malformed row, by file and line; another
            number of pairs than published.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "mine.tsv"
        >>> _ = file.write_text("sentence1\tsentence2\tscore\nA dog barks.\tA dog is loud.\t4.5\nRain.\tTea.\t0\n")
        >>> task = read_task(str(file))
        >>> task.name, len(task), task.scores.tolist()
        ('mine.tsv', 2, [4.5, 0.0])
    """
    known = canonical(name)
    if known is None:
        return _read_file(name, columns)
    if columns is not None:
        raise InputError(f"{known} is a published data set, whose columns are known; --columns is for files")
    if data is None:
        raise InputError(
            f"{known}: say where it is: --data FOLDER (as released, looked for under {', '.join(PUBLISHED[known].folders)}), "
            "--data tfds or --data hub"
        )
    kind, _, place = str(data).partition(":")
    if kind in ("tfds", "hub") and not Path(data).is_dir():
        from jaxvec.evaluation import remote

        if kind == "tfds":
            return remote.read_tfds(known, place or None)
        return remote.read_hub(known)
    return _read_folder(known, Path(data))


def _read_file(name: str, columns: str | None) -> Task:
    path = Path(name)
    if not name.lower().removesuffix(".gz").endswith(TABLES):
        raise InputError(
            f"--task {name}: not one of {', '.join(PUBLISHED)}, nor a file named {', '.join(TABLES)}"
        )
    asked = (columns or "sentence1,sentence2,score").split(",")
    if len(asked) != 3:
        raise InputError(
            f"--columns {columns}: expected two text columns and the score's: FIRST,SECOND,SCORE"
        )
    pairs = as_pairs(read_columns(name, asked), name)
    if pairs.scores is None:
        raise InputError(f"{name}: no row has a score; expected numbers in column {asked[2]}")
    return Task(path.name, "test", {"test": pairs}, source=name)


def _read_folder(name: str, root: Path) -> Task:
    known = PUBLISHED[name]
    if not root.is_dir():
        raise InputError(f"--data {root}: no such folder")
    looked = [root / folder for folder in known.folders] + [root]
    for folder in looked:
        if folder.is_dir() and (splits := dict(_splits(name, known, folder))):
            return make_task(name, splits, str(folder))
    raise InputError(
        f"{known.title} was not found: looked for {_expected_files(name)} in "
        f"{', '.join(f'{folder}/' for folder in looked)}"
    )


def _splits(name: str, known: Published, folder: Path) -> Iterator[tuple[str, Pairs]]:
    if known.subsets:
        yield from _semeval(known, folder)
    elif name == "snli":
        yield from _snli(folder)
    else:
        for split, files in _LAYOUTS[name].items():
            for file, read in files:
                if (folder / file).is_file():
                    yield split, as_pairs(read(folder / file), str(folder / file))
                    break


def _semeval(known: Published, folder: Path) -> Iterator[tuple[str, Pairs]]:
    for subset in known.counts:
        for stem in ("STS", "STS2016"):
            texts, gold = (folder / f"{stem}.{kind}.{subset}.txt" for kind in ("input", "gs"))
            if texts.is_file() and gold.is_file():
                yield subset, as_pairs(_aligned(texts, gold), str(texts))
                break


def _aligned(texts: Path, gold: Path) -> Iterator[tuple[int, Row]]:
    """Rows of an input file and the scores beside it; a line without a score was never scored by anyone."""
    rows, scores = _lines(texts), _lines(gold)
    if len(rows) != len(scores):
        raise InputError(f"{texts} has {len(rows)} lines but {gold} has {len(scores)}; expected as many")
    for number, (row, score) in enumerate(zip(rows, scores, strict=True), start=1):
        if score.strip():
            first, second = _fields(row, texts, number, 2)[:2]
            yield number, (first, second, score)


def _snli(folder: Path) -> Iterator[tuple[str, Pairs]]:
    """SNLI as pairs: 1 where the first entails the second, else 0; for want of a published use, a 0/1 stand-in."""
    for split in ("train", "dev", "test"):
        files = [folder / f"{part}.{split}" for part in ("s1", "s2", "labels")]
        if all(file.is_file() for file in files):
            first, second, labels = map(_lines, files)
            if not len(first) == len(second) == len(labels):
                raise InputError(f"{files[0]} and those beside it have different numbers of lines")
            scores = np.array([float(label == "entailment") for label in labels])
            yield split, Pairs(first, second, scores)


def as_pairs(rows: Iterable[tuple[int, Sequence[Any]]], where: str) -> Pairs:
    """Pairs of numbered rows (first, second, score); a split that was released without scores has None in all.

    Raises:
        InputError: no rows; or, naming the line, a text or a score that is none.
    """
    first, second, scores = [], [], []
    for number, (one, two, score) in rows:
        for text in (one, two):
            if not isinstance(text, str):
                raise InputError(f"{where}, line {number}: {text!r} is not text; expected two sentences")
        if (score is None) != (scores[:1] == [None]) and scores:
            raise InputError(
                f"{where}, line {number}: no score, though other lines have one (or the reverse)"
            )
        first.append(one)
        second.append(two)
        scores.append(None if score is None else _score(score, where, number))
    if not first:
        raise InputError(f"{where} is empty; expected sentence pairs with scores")
    return Pairs(first, second, None if scores[0] is None else np.array(scores, np.float64))


def _score(text: Any, where: str, number: int) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError, OverflowError):
        value = np.nan
    # Python's own spelling of numbers, "1_0" for 10, is no other program's.
    if not np.isfinite(value) or isinstance(text, bool) or "_" in str(text):
        raise InputError(f"{where}, line {number}: the score is {text!r:.80}; expected a number")
    return value


def _lines(path: Path) -> list[str]:
    """Lines of a file; they end at newline only, as other characters that str.splitlines knows occur in texts."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8; fetch the file again") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def _fields(line: str, path: Path, number: int, least: int) -> list[str]:
    fields = line.split("\t")
    if len(fields) < least:
        raise InputError(
            f"{path}, line {number}: {len(fields)} tab-separated field(s); expected {least} or more"
        )
    return fields


def _numbered(first: int, second: int, score: int, identity: int | None = None) -> Callable[[Path], Any]:
    """A reader of tab-separated columns by number, without header; the first `identity` name the row."""

    def read(path: Path) -> Iterator[tuple[int, Row]]:
        seen: dict[tuple[str, ...], int] = {}
        for number, line in enumerate(_lines(path), start=1):
            fields = _fields(line, path, number, 1 + max(first, second, score))
            if identity is not None:
                _once(seen, tuple(fields[:identity]), path, number)
            yield number, (fields[first], fields[second], fields[score])

    return read


def _three(path: Path) -> Iterator[tuple[int, Row]]:
    """Two sentences and a label on each line; a header, where a release has one, ends in a word for the label."""
    for number, line in enumerate(_lines(path), start=1):
        fields = line.split("\t")
        if number == 1 and fields[-1] in ("label", "score"):
            continue
        if len(fields) == 2:
            yield number, (fields[0], fields[1], None)
        elif len(fields) == 3:
            yield number, (fields[0], fields[1], fields[2])
        else:
            raise InputError(f"{path}, line {number}: {len(fields)} tab-separated field(s); expected 3")


def _headed(first: str, second: str, score: str, identity: str | None = None) -> Callable[[Path], Any]:
    """A reader of tab-separated columns by the names in the header."""

    def read(path: Path) -> Iterator[tuple[int, Row]]:
        lines = _lines(path)
        header = lines[0].split("\t") if lines else []
        if missing := [name for name in (first, second) if name not in header]:
            raise InputError(f"{path}: no column {', '.join(missing)}. Found: {', '.join(header)}")
        at = [header.index(name) if name in header else None for name in (first, second, score)]
        seen: dict[tuple[str, ...], int] = {}
        for number, line in enumerate(lines[1:], start=2):
            fields = _fields(line, path, number, len(header))
            if identity in header:
                _once(seen, (fields[header.index(identity)],), path, number)
            one, two, three = (None if column is None else fields[column] for column in at)
            yield number, (one, two, _ENTAILS.get(three, three))

    return read


def _once(seen: dict[tuple[str, ...], int], key: tuple[str, ...], path: Path, number: int) -> None:
    if key in seen:
        raise InputError(
            f"{path}, line {number}: the id {' '.join(key)!r} is that of line {seen[key]} too; fetch the file again"
        )
    seen[key] = number


def _expected_files(name: str) -> str:
    if PUBLISHED[name].subsets:
        return "STS.input.*.txt with STS.gs.*.txt"
    if name == "snli":
        return "s1.dev, s2.dev and labels.dev"
    return " or ".join(file for file, _ in _LAYOUTS[name][PUBLISHED[name].scored])


_ENTAILS = {"entailment": "1", "not_entailment": "0"}
_STSB = _numbered(5, 6, 4, identity=4)
_GLUE = _headed("sentence1", "sentence2", "score")
_SICK = _headed("sentence_A", "sentence_B", "relatedness_score", identity="pair_ID")
_PAWSX = _headed("sentence1", "sentence2", "label", identity="id")
_QNLI = _headed("question", "sentence", "label", identity="index")
_Layout = dict[str, list[tuple[str, Callable[[Path], Any]]]]


def _chinese(stem: str) -> _Layout:
    names = {"train": ("train",), "dev": ("valid", "dev"), "test": ("test",)}
    return {
        split: [(f"{stem}.{name}.data", _three) for name in spelled]
        + [(f"{name}.tsv", _three) for name in spelled]
        for split, spelled in names.items()
    }


_LAYOUTS: dict[str, _Layout] = {
    "stsb": {s: [(f"sts-{s}.csv", _STSB), (f"{s}.tsv", _GLUE)] for s in ("train", "dev", "test")},
    "sickr": {
        "train": [("SICK_train.txt", _SICK)],
        "dev": [("SICK_trial.txt", _SICK)],
        "test": [("SICK_test_annotated.txt", _SICK)],
    },
    "qnli": {s: [(f"{s}.tsv", _QNLI)] for s in ("train", "dev", "test")},
    **{name: _chinese(stem) for name, stem in (("lcqmc", "LCQMC"), ("atec", "ATEC"), ("bq", "BQ"))},
    "stsb-zh": _chinese("STS-B"),
    "pawsx-zh": {
        split: [(file, _PAWSX), *_chinese("PAWSX")[split]]
        for split, file in (
            ("train", "translated_train.tsv"),
            ("dev", "dev_2k.tsv"),
            ("test", "test_2k.tsv"),
        )
    },
}
