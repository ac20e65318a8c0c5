"""The figures of the evaluation: cone, maps, what cosine follows, and how many dimensions whitening should keep.

    python experiments/isotropy_figures.py DATA [--model MODEL] [--layers 1,4]

Writes experiments/figures/{isotropy,maps,similarity,dimensions}.png and the figures drawn as
experiments/results/isotropy_figures.json. Model: the bundled all-MiniLM-L6-v2 at hidden states 1 and 4, which nobody
tuned for cosine, as a stand-in for a raw BERT. Whitening is fitted on the sentences that are scored, without their
scores. Similarity against gold and edit distance: STS-B dev, as in B. Li et al., EMNLP 2020, Table 6; the distance is
in the model's tokens. Dimensions: STS-B test, STS16, SICK-R, as in J. Su et al. 2021, Figure 1. Some 90 s of two CPU
cores.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import jaxvec
from jaxvec.calibration.affine import whitening
from jaxvec.calibration.moments import Moments
from jaxvec.cli.options import parse_layers, run_script
from jaxvec.evaluation.edit_distance import token_edit_distance
from jaxvec.evaluation.figures import (
    draw_against,
    draw_cosines,
    draw_dimensions,
    draw_map,
    draw_spectrum,
    new_figure,
    pca_map,
    save_figure,
    tsne_map,
)
from jaxvec.evaluation.isotropy import measure_isotropy
from jaxvec.evaluation.metrics import cosine, spearman
from jaxvec.evaluation.readers import read_task
from jaxvec.vectorfiles import atomic_write_bytes

HERE = Path(__file__).parent
DIMENSIONS = (8, 16, 32, 64, 128, 192, 256, 383)
JOINED = 7  # pairs of the same meaning that a map joins


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--layers", default="1,4")
    options = parser.parse_args()
    encoder = jaxvec.SentenceEncoder.load(options.model, layers=parse_layers(options.layers))
    tasks = {name: read_task(name, options.data) for name in ("stsb", "sts16", "sickr")}
    dev = tasks["stsb"].scoring("dev").scored
    vectors = encoder.encode(dev.sentences, normalize=False)
    whiten = whitening(Moments.of(vectors), dim=min(128, encoder.dim // 3))
    forms = {"raw": vectors, f"whitened to {whiten.dim}": np.asarray(whiten(vectors))}
    record = {"model": encoder.describe(), "isotropy": _isotropy(forms)}
    _maps(forms, dev)
    record["similarity"] = _similarity(forms, encoder, dev)
    record["dimensions"] = _dimensions(encoder, tasks)
    text = json.dumps(record, indent=1) + "\n"
    atomic_write_bytes(HERE / "results/isotropy_figures.json", text.encode())


def _isotropy(forms):
    figure, axes = new_figure(1, 2)
    measured = {name: measure_isotropy(x) for name, x in forms.items()}
    draw_spectrum(axes[0, 0], {name: isotropy.spectrum for name, isotropy in measured.items()})
    draw_cosines(axes[0, 1], {name: x[:1500] for name, x in forms.items()})
    save_figure(figure, HERE / "figures/isotropy.png")
    # The spectrum is in the figure.
    return {
        name: {key: value for key, value in isotropy.figures().items() if key != "spectrum"}
        for name, isotropy in measured.items()
    }


def _maps(forms, dev):
    n = len(dev)
    same = [int(row) for row in np.flatnonzero(dev.scores == dev.scores.max())]
    same = same[:: max(1, len(same) // JOINED)][:JOINED]
    rows = np.concatenate([np.arange(0, n, 3), same, [row + n for row in same]])
    pairs = [(len(rows) - 2 * len(same) + i, len(rows) - len(same) + i) for i in range(len(same))]
    figure, axes = new_figure(2, 2)
    for column, (name, x) in enumerate(forms.items()):
        draw_map(axes[0, column], pca_map(x[rows]), f"PCA: {name}", pairs)
        draw_map(axes[1, column], tsne_map(x[rows]), f"t-SNE: {name}", pairs)
    figure.suptitle("STS-B dev; joined: pairs of the same meaning", fontsize=9)
    save_figure(figure, HERE / "figures/maps.png")


def _similarity(forms, encoder, dev):
    distances = token_edit_distance(encoder.tokenizer, dev.first, dev.second)
    figure, axes = new_figure(2, 2)
    found = {"gold": {"edit distance": spearman(dev.scores, distances), "gold": 1.0}}
    for column, (name, x) in enumerate(forms.items()):
        similarities = cosine(*np.split(x, 2))
        draw_against(axes[0, column], similarities, dev.scores, "gold score", name)
        draw_against(axes[1, column], similarities, distances, "edit distance in tokens", name)
        found[name] = {
            "edit distance": spearman(similarities, distances),
            "gold": spearman(similarities, dev.scores),
        }
    save_figure(figure, HERE / "figures/similarity.png")
    return found


def _dimensions(encoder, tasks):
    curves, raw = {}, {}
    for name, task in tasks.items():
        vectors = encoder.encode(task.sentences, normalize=False)
        white = np.asarray(whitening(Moments.of(vectors))(vectors))
        raw[name] = spearman(cosine(*np.split(vectors, 2)), task.scores)
        widths = [k for k in DIMENSIONS if k <= white.shape[1]]
        curves[name] = {k: spearman(cosine(*np.split(white[:, :k], 2)), task.scores) for k in widths}
    figure, axes = new_figure(1, 1, width=5.5, height=3.6)
    draw_dimensions(axes[0, 0], curves, raw)
    save_figure(figure, HERE / "figures/dimensions.png")
    return {"raw": raw, "whitened": curves}


if __name__ == "__main__":
    run_script(main)
