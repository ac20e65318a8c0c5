"""Figures of vectors and similarities, drawn on matplotlib axes that the caller gives; readable without colour."""

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Real

from jaxvec.errors import InputError
from jaxvec.evaluation.metrics import spearman
from jaxvec.evaluation.pairwise import unit_rows
from jaxvec.vectorfiles import atomic_write_bytes, check_target

Vectors = Float[Array | np.ndarray, "n d"]
Values = Real[Array | np.ndarray, " n"]
LINES = ("-", "--", ":", "-.")
SHADES = ("0.0", "0.0", "0.45", "0.45")


def new_figure(rows: int, columns: int, width: float = 4.0, height: float = 3.2) -> tuple[Any, np.ndarray]:
    """A figure and its axes [rows, columns], without pyplot's global state.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("figures need matplotlib: pip install 'jaxvec[plot]'") from None
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_figure(figure: Any, path: str | Path) -> None:
    """Writes a .png, .pdf or .svg; a half-written file never takes the name.

    Raises:
        InputError: another ending, or the file cannot be written.
    """
    check_figure(path)
    kind = Path(path).suffix.lower().removeprefix(".")
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Sentences may hold letters that the font lacks; boxes in their place are no reason to fail.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure.savefig(buffer, format=kind, dpi=130)
    atomic_write_bytes(path, buffer.getvalue())


def check_figure(path: str | Path) -> None:
    """Refuses a name or a machine that no figure can be written with, before any work is done."""
    if Path(path).suffix.lower() not in (".png", ".pdf", ".svg"):
        raise InputError(f"{path}: cannot tell the format; expected a name ending in .png, .pdf or .svg")
    check_target(path)
    new_figure(1, 1)


def draw_spectrum(axis: Any, spectra: Mapping[str, Float[np.ndarray, "..."]]) -> None:
    """Variance along each principal direction, as a share of the largest, on a logarithmic axis."""
    for number, (name, variances) in enumerate(spectra.items()):
        share = variances / variances[0] if len(variances) and variances[0] > 0 else variances
        share = share[share > 1e-9]  # a direction that is missing is float32 noise
        line, shade = LINES[number % 4], SHADES[number % 4]
        axis.semilogy(np.arange(1, len(share) + 1), share, line, color=shade, label=name)
    axis.set(xlabel="principal direction", ylabel="variance, share of the largest", title="spectrum")
    axis.legend(frameon=False)


def draw_cosines(axis: Any, vectors: Mapping[str, Float[np.ndarray, "..."]]) -> None:
    """Histogram of the cosines of all pairs of rows, one outline for each set of vectors."""
    bins = np.linspace(-1, 1, 101)
    lowest = 0.0
    for number, (name, rows) in enumerate(vectors.items()):
        cosines = all_cosines(rows)
        lowest = min(lowest, float(np.quantile(cosines, 0.001)))
        style = {"linestyle": LINES[number % 4], "edgecolor": SHADES[number % 4], "linewidth": 1.4}
        axis.hist(
            cosines,
            bins,
            density=True,
            histtype="stepfilled" if number == 0 else "step",
            facecolor="0.85" if number == 0 else "none",
            label=f"{name}: mean {round(float(cosines.mean()), 2) + 0.0:.2f}",  # no −0.00
            **style,
        )
    axis.set(
        xlabel="cosine of two sentences",
        ylabel="density",
        title="cosines of all pairs",
        xlim=(max(-1, lowest - 0.1), 1),
        ylim=(0, axis.get_ylim()[1] * (1.1 + 0.1 * len(vectors))),  # room for the legend
    )
    axis.legend(frameon=False)


def all_cosines(vectors: Vectors) -> Float[np.ndarray, " pairs"]:
    """Cosines of all pairs i < j, float32 [n(n − 1)/2]: for samples of a few thousand rows."""
    unit = unit_rows(vectors)
    return (unit @ unit.T)[np.triu_indices(len(unit), 1)]


def pca_map(vectors: Vectors) -> Float[np.ndarray, "n 2"]:
    """The rows at unit length, projected on their two leading principal components."""
    unit = unit_rows(vectors)
    centred = unit - unit.mean(axis=0)
    return centred @ np.linalg.eigh(centred.T @ centred)[1][:, :-3:-1]


def tsne_map(vectors: Vectors, seed: int = 0) -> Float[np.ndarray, "n 2"]:
    """t-SNE of the rows by cosine distance, with scikit-learn.

    Raises:
        InputError: scikit-learn is not installed, or there are fewer than 5 rows.

    Reference: L. van der Maaten, G. Hinton, "Visualizing Data using t-SNE", JMLR 9, 2008.
    """
    try:
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise InputError("a t-SNE map needs scikit-learn: pip install 'jaxvec[plot]'") from None
    if len(vectors) < 5:
        raise InputError(f"a t-SNE map needs 5 vectors or more; {len(vectors)} came")
    unit = unit_rows(vectors)
    perplexity = min(30, (len(unit) - 1) / 3)
    model = TSNE(metric="cosine", perplexity=perplexity, init="random", random_state=seed)
    # Its short parallel loops cost far more than they save where another program uses the cores.
    with threadpool_limits(limits=1):
        return model.fit_transform(unit)


def draw_map(
    axis: Any,
    points: Float[np.ndarray, "n 2"],
    title: str,
    pairs: Sequence[tuple[int, int]] = (),
    labels: Mapping[int, str] | None = None,
) -> None:
    """A map of sentences as dots; `pairs` of rows are joined, `labels` name some of them."""
    axis.scatter(*points.T, s=5, color="0.7", linewidths=0)
    for number, pair in enumerate(pairs):
        ends = points[list(pair)]
        marker = "os^Dv*P"[number % 7]
        axis.plot(*ends.T, color="black", linewidth=1, marker=marker, markersize=5, markerfacecolor="white")
    for row, text in (labels or {}).items():
        axis.annotate(text, points[row], fontsize=6, xytext=(3, 3), textcoords="offset points")
    axis.set(title=title, xticks=[], yticks=[], xlabel="first coordinate", ylabel="second coordinate")


def draw_against(axis: Any, similarities: Values, others: Values, name: str, title: str = "cosine") -> None:
    """Similarities against gold scores or edit distances, as shaded hexagons, with Spearman's ρ."""
    cells = {"gridsize": 28, "cmap": "Greys", "mincnt": 1, "bins": "log"}
    # A single pair is the lightest shade, white: its outline shows it.
    axis.hexbin(np.asarray(others), np.asarray(similarities), edgecolors="0.7", linewidths=0.3, **cells)
    rho = spearman(similarities, others)
    axis.set(xlabel=name, ylabel="cosine", title=f"{title}: Spearman {rho:.3f}")


def draw_dimensions(
    axis: Any, curves: Mapping[str, Mapping[int, float]], raw: Mapping[str, float] | None = None
) -> None:
    """Spearman against the number of dimensions that whitening keeps, one line a task; raw is a level line."""
    for number, (name, curve) in enumerate(curves.items()):
        style = {"color": SHADES[number % 4], "linestyle": LINES[number % 4]}
        axis.plot(
            list(curve), list(curve.values()), marker="os^D"[number % 4], markersize=4, label=name, **style
        )
        if raw and name in raw:
            axis.axhline(raw[name], linewidth=0.8, **style)
            axis.annotate(f"raw, {name}", (min(curve), raw[name]), fontsize=7, va="bottom")
    axis.set(
        xscale="log", xlabel="dimensions kept by whitening", ylabel="Spearman", title="how many dimensions"
    )
    ticks = sorted({dim for curve in curves.values() for dim in curve})
    axis.set_xticks(ticks, map(str, ticks))
    axis.minorticks_off()
    axis.legend(frameon=False)
