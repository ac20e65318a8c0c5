"""The figure of `jaxvec inspect`: spectrum, cosines and maps, before and after."""

import importlib.util
from pathlib import Path

from jaxvec.evaluation.figures import (
    draw_cosines,
    draw_map,
    draw_spectrum,
    new_figure,
    pca_map,
    save_figure,
    tsne_map,
)
from jaxvec.evaluation.inspection import Inspection

_SHOWN = 1_000  # sentences that are drawn


def draw_inspection(inspection: Inspection, path: str | Path) -> None:
    """Spectrum and cosines of every view, and maps of the first and the last one; t-SNE where scikit-learn is.

    Raises:
        InputError: matplotlib is not installed, or the file cannot be written.
    """
    views = {view.name: view.vectors[:_SHOWN] for view in inspection.views}
    tsne = importlib.util.find_spec("sklearn") is not None
    ends = (
        [inspection.views[0]] if len(inspection.views) == 1 else [inspection.views[0], inspection.views[-1]]
    )
    figure, axes = new_figure(2 + tsne, 2)
    draw_spectrum(axes[0, 0], {view.name: view.isotropy.spectrum for view in inspection.views})
    draw_cosines(axes[0, 1], views)
    for column, view in enumerate(ends):
        draw_map(axes[1, column], pca_map(views[view.name]), f"PCA: {view.name}")
        if tsne:
            draw_map(axes[2, column], tsne_map(views[view.name]), f"t-SNE: {view.name}")
    for axis in axes[1:, len(ends) :].flat:
        axis.set_visible(False)
    save_figure(figure, path)
