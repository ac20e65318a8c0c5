"""Tasks × methods → scores: one encoding pass, then every calibration, figure and interval from its vectors."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.evaluation.bootstrap import interval, resample_spearman
from jaxvec.evaluation.corrections import RAW, Correction, Sample, parse_correction
from jaxvec.evaluation.encoding import Choice, EncodedTexts, make_choice
from jaxvec.evaluation.metrics import aggregate, best_accuracy, cosine, pearson, roc_auc, spearman
from jaxvec.evaluation.settings import OF_THE_TASK, FitText, fitting_text
from jaxvec.evaluation.tasks import Task


@dataclass(frozen=True)
class Method:
    """One way to get vectors: a pooling and layers, a calibration, and what that is fitted on."""

    choice: Choice
    correction: Correction = field(default_factory=lambda: parse_correction(RAW))
    fit: str = "self"

    def describe(self) -> dict[str, Any]:
        """Plain values for a report."""
        pooling, layers = self.choice
        return {
            "pooling": pooling,
            "layers": list(layers),
            "calibration": self.correction.name,
            "fit": self.fit if self.correction.steps else None,
        }


Refused = Callable[[Task, Method, InputError], Any]


@dataclass(frozen=True, kw_only=True)
class Score:
    """How one method does on one task. Figures are from −1 to 1 (AUC, accuracy: 0 to 1); NaN is undefined.

    Attributes:
        method, task, split, pairs: what was scored, and how many pairs.
        dim: coordinates of the vectors.
        fitted_on: the splits or files, and their number of sentences; None for raw vectors.
        figures: "all", "mean", "wmean" (see `metrics.aggregate`), "pearson"; "auc", "accuracy" for 0/1 scores.
        subsets: Spearman of each.
        intervals: (low, high) at 95 % for "all", "mean", "wmean" and "auc"; empty unless asked for.
        gains: (difference, low, high) against the raw vectors of the same choice, of paired resamples.
    """

    method: Method
    task: str
    split: str
    pairs: int
    dim: int
    fitted_on: tuple[tuple[str, ...], int] | None
    figures: dict[str, float]
    subsets: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    gains: dict[str, tuple[float, float, float]]

    def as_json(self) -> dict[str, Any]:
        """Plain values; what is undefined is null."""
        fitted = self.fitted_on and {"parts": list(self.fitted_on[0]), "sentences": self.fitted_on[1]}
        return {
            "task": self.task,
            "split": self.split,
            "pairs": self.pairs,
            **self.method.describe(),
            "dim": self.dim,
            "fitted_on": fitted,
            "figures": _plain(self.figures),
            "subsets": _plain(self.subsets),
            "intervals": {name: list(map(_finite, pair)) for name, pair in self.intervals.items()},
            "gains_over_raw": {name: list(map(_finite, three)) for name, three in self.gains.items()},
        }


def evaluate(
    encoder: SentenceEncoder,
    tasks: Sequence[Task],
    methods: Sequence[Method] | None = None,
    *,
    data: str | Path | None = None,
    shared: dict[str, FitText] | None = None,
    resamples: int = 0,
    tick: Callable[[int], Any] = lambda count: None,
) -> Iterator[Score]:
    """Scores of every method on every task, task after task; each distinct sentence is encoded once.

    Args:
        encoder: whose vectors are scored; a calibration it has already comes before those of the methods.
        tasks: what to score on.
        methods: None is the encoder as it is.
        data: root folder of the data sets, for methods fitted on "nli".
        shared: texts to fit on that were read before, by setting; see `settings.shared_texts`.
        resamples: of the paired bootstrap; 0 leaves intervals out, 10,000 is usual.
        tick: called with the number of sentences after every batch.

    Raises:
        InputError: a method that this encoder cannot give, or a task that cannot be fitted in the setting asked,
            naming task, calibration and setting.

    Example:
        >>> from jaxvec.evaluation.tasks import Pairs
        >>> pairs = Pairs(["A dog barks.", "It rains.", "Stocks fell."], ["A dog is loud.", "Rain falls.", "Tea?"],
        ...               np.array([4.0, 5.0, 0.0]))
        >>> (score,) = evaluate(SentenceEncoder.load(), [Task("mine", "test", {"test": pairs})])
        >>> score.figures["all"] > 0
        True
    """
    methods = [Method(make_choice(encoder))] if methods is None else list(methods)
    plan = [(task, methods) for task in tasks]
    yield from evaluate_plan(encoder, plan, data=data, shared=shared, resamples=resamples, tick=tick)


def evaluate_plan(
    encoder: SentenceEncoder,
    plan: Sequence[tuple[Task, Sequence[Method]]],
    *,
    data: str | Path | None = None,
    shared: dict[str, FitText] | None = None,
    resamples: int = 0,
    tick: Callable[[int], Any] = lambda count: None,
    refused: Refused | None = None,
) -> Iterator[Score]:
    """As `evaluate`, with methods of its own for every task; still one encoding pass for all of them.

    A method that cannot be fitted is left out where there is a `refused`, which is called with the task, the method
    and the error; else that is raised.
    """
    refused = refused or _raise
    shared = dict(shared or {})
    fits = [_fitting_texts(task, methods, data, shared, refused) for task, methods in plan]
    scored = (text for task, _ in plan for text in task.sentences)
    fitted_on = (text for own in fits for fit in own.values() for text in fit.sentences)
    choices = [method.choice for _, methods in plan for method in methods]
    encoded = EncodedTexts(encoder, chain(scored, fitted_on), choices, tick)
    fitted = _Fits(encoded)
    for (task, methods), own in zip(plan, fits, strict=True):
        fittable = [method for method in methods if not method.correction.steps or method.fit in own]
        yield from _score_task(task, fittable, own, encoded, fitted, resamples, refused)
        fitted.forget(text for setting, text in own.items() if setting not in shared)


def _raise(task: Task, method: Method, error: InputError) -> None:
    raise error


def _fitting_texts(
    task: Task,
    methods: Sequence[Method],
    data: str | Path | None,
    shared: dict[str, FitText],
    refused: Refused,
) -> dict[str, FitText]:
    """The texts by setting; those that several tasks share are added to `shared`."""
    own = {}
    for setting in dict.fromkeys(method.fit for method in methods if method.correction.steps):
        try:
            own[setting] = shared.get(setting) or fitting_text(task, setting, data)
        except InputError as error:
            for method in methods:
                if method.correction.steps and method.fit == setting:
                    refused(task, method, error)
            continue
        if setting not in OF_THE_TASK:
            shared[setting] = own[setting]
    return own


class _Fits:
    """Calibrations fitted so far; those on a text that several tasks share are kept for the next task."""

    def __init__(self, encoded: EncodedTexts):
        self.encoded = encoded
        self.samples: dict[tuple[int, Choice], Sample] = {}
        self.calibrations: dict[tuple[int, Choice, str], Any] = {}

    def __call__(self, task: Task, method: Method, text: FitText) -> Any:
        at = (id(text), method.choice)
        if at not in self.samples:
            self.samples[at] = Sample(self.encoded.vectors(method.choice, text.sentences))
        key = (*at, method.correction.name)
        if key not in self.calibrations:
            try:
                self.calibrations[key] = method.correction.fit(self.samples[at])
            except InputError as error:
                raise InputError(
                    f"{task.name}, --calibrate {method.correction.name} --fit {text.setting} "
                    f"({len(text.sentences)} sentences): {error}"
                ) from error
        return self.calibrations[key]

    def forget(self, texts: Iterable[FitText]) -> None:
        gone = {id(text) for text in texts}
        self.samples = {key: kept for key, kept in self.samples.items() if key[0] not in gone}
        self.calibrations = {key: kept for key, kept in self.calibrations.items() if key[0] not in gone}


def _score_task(
    task: Task,
    methods: Sequence[Method],
    texts: dict[str, FitText],
    encoded: EncodedTexts,
    fitted: _Fits,
    resamples: int,
    refused: Refused,
) -> Iterator[Score]:
    gold, n, sentences = task.scores, len(task), task.sentences
    done, cells, dims = [], [], []
    for method in methods:
        vectors, place = encoded.distinct(method.choice, sentences)
        if method.correction.steps:
            try:
                calibration = fitted(task, method, texts[method.fit])
            except InputError as error:
                refused(task, method, error)
                continue
            vectors = np.asarray(calibration(vectors))
        done.append(method)
        cells.append(cosine(vectors[place[:n]], vectors[place[n:]]))
        dims.append(vectors.shape[1])
    if not done:
        return
    samples = {}
    if resamples:
        samples = resample_spearman(np.stack(cells), gold, task.sizes, resamples)
    figures = [_figures(similarities, task) for similarities in cells]
    raw = {method.choice: row for row, method in enumerate(done) if not method.correction.steps}
    ends = np.cumsum(task.sizes)[:-1]
    for row, method in enumerate(done):
        text = texts[method.fit] if method.correction.steps else None
        subsets = zip(task.subsets, np.split(cells[row], ends), np.split(gold, ends), strict=True)
        base = raw.get(method.choice, row)
        yield Score(
            method=method,
            task=task.name,
            split=task.split,
            pairs=n,
            dim=dims[row],
            fitted_on=text and (text.parts, len(text.sentences)),
            figures=figures[row],
            subsets={name: spearman(x, y) for name, x, y in subsets},
            intervals={name: interval(found[row]) for name, found in samples.items()},
            gains={
                name: (figures[row][name] - figures[base][name], *interval(found[row] - found[base]))
                for name, found in samples.items()
                if base != row
            },
        )


def _figures(similarities: np.ndarray, task: Task) -> dict[str, float]:
    gold = task.scores
    figures = {**aggregate(similarities, gold, task.sizes), "pearson": pearson(similarities, gold)}
    if task.binary:
        figures |= {"auc": roc_auc(similarities, gold), "accuracy": best_accuracy(similarities, gold)[0]}
    return figures


def _plain(figures: dict[str, float]) -> dict[str, float | None]:
    return {name: _finite(figure) for name, figure in figures.items()}


def _finite(figure: float) -> float | None:
    return float(figure) if np.isfinite(figure) else None
