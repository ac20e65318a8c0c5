"""Calibrations by name, as a command line writes them: "whitening:256", "standardize+remove-components:1"."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxvec.calibration.affine import pca, remove_components, standardize, whitening
from jaxvec.calibration.chain import compose
from jaxvec.calibration.moments import Moments
from jaxvec.errors import InputError

RAW = "raw"


@dataclass(frozen=True, eq=False)
class Sample:
    """Vectors [n, d] to fit on; their moments are computed once for all the calibrations that need them."""

    vectors: Float[np.ndarray, "n d"]

    @cached_property
    def moments(self) -> Moments:
        """Moments of the vectors."""
        return Moments.of(self.vectors)


@dataclass(frozen=True)
class Correction:
    """A calibration that has not been fitted yet.

    Attributes:
        name: in its normal spelling; "raw" is none.
        steps: each fits on what the ones before it made of the sample.
    """

    name: str
    steps: tuple[Callable[[Sample], Any], ...]

    def check_width(self, dim: int) -> None:
        """Refuses what asks for more directions than vectors of this width have, before there are any."""
        for step in self.name.split("+"):
            kind, _, number = step.partition(":")
            if kind == "flow" or not number:
                continue
            most = dim - (kind == "remove-components")
            if int(number) > most:
                raise InputError(f"--calibrate {step}: of {dim} dimensions it takes 1 to {most}")
            dim = dim if kind == "remove-components" else int(number)

    def fit(self, sample: Sample) -> Any:
        """The calibration fitted on the sample, or None for "raw"."""
        fitted = []
        for step in self.steps:
            if fitted:
                sample = Sample(np.asarray(fitted[-1](sample.vectors)))
            fitted.append(step(sample))
        return reduce(compose, fitted) if fitted else None


def parse_correction(text: str) -> Correction:
    """A calibration from its name.

    Args:
        text: "raw", "whitening", "whitening:256", "pca:128", "standardize", "remove-components:3", "flow",
            "flow:bert_flow" (a preset), or several joined by "+", each fitted after the one before it.

    Raises:
        InputError: no such calibration or preset, or a number that is none.

    >>> parse_correction("standardize + remove_components").name, parse_correction("whitening:08").name
    ('standardize+remove-components:1', 'whitening:8')
    >>> vectors = np.random.default_rng(0).normal(size=(99, 8)).astype(np.float32)
    >>> parse_correction("whitening:3+standardize").fit(Sample(vectors)).dim
    3
    """
    if text.strip() == RAW:
        return Correction(RAW, ())
    names, steps = zip(*(_parse_step(part.strip()) for part in text.split("+")), strict=True)
    return Correction("+".join(names), steps)


def _parse_step(text: str) -> tuple[str, Callable[[Sample], Any]]:
    name, _, argument = text.partition(":")
    name = name.replace("_", "-")
    if name == "flow":
        from jaxvec.calibration.flow.recipe import PRESETS

        preset = argument or "glow"
        if preset not in PRESETS:
            raise InputError(
                f"--calibrate {text}: no preset {argument!r}; expected one of {', '.join(PRESETS)}"
            )
        # "flow" is the preset that `Flow.fit` takes by itself.
        return ("flow" if preset == "glow" else f"flow:{preset}"), lambda sample: _fit_flow(sample, preset)
    if name in ("whitening", "pca"):
        solve = {"whitening": whitening, "pca": pca}[name]
        dim = _number(text, argument) if argument else None
        return (name if dim is None else f"{name}:{dim}"), lambda sample: solve(sample.moments, dim)
    if name == "standardize" and not argument:
        return name, lambda sample: standardize(sample.moments)
    if name == "remove-components":
        k = _number(text, argument or "1")
        return f"{name}:{k}", lambda sample: remove_components(sample.moments, k)
    raise InputError(
        f"--calibrate {text}: expected raw, whitening[:DIM], pca[:DIM], standardize, remove-components[:K] or "
        "flow[:PRESET], or several joined by +"
    )


def _number(text: str, argument: str) -> int:
    if not argument.isdecimal() or not int(argument):
        raise InputError(f"--calibrate {text}: {argument!r} is not a number of dimensions")
    return int(argument)


def _fit_flow(sample: Sample, preset: str) -> Any:
    from jaxvec.calibration.flow import Flow

    return Flow.fit(sample.vectors, preset=preset)
