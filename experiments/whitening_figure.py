"""The README's figure: cosines of an untuned layer before and after whitening.

    JAXVEC_DATA=data python experiments/whitening_figure.py experiments/figures/whitening.png

Data: the STS-B test split (1,379 pairs). Model: the bundled all-MiniLM-L6-v2 at hidden state 4, which nobody tuned
for cosine and which is as anisotropic as a raw BERT. Whitening is fitted on the very sentences that are scored,
without their scores, as in the papers. Some 30 s on two CPU cores.
"""

import os
import sys

import matplotlib
import numpy as np

import jaxvec
from jaxvec.evaluation.metrics import cosine, spearman
from jaxvec.evaluation.readers import read_task

matplotlib.use("Agg")
import matplotlib.pyplot as plt

task = read_task("stsb", os.environ["JAXVEC_DATA"])
gold = task.scores
encoder = jaxvec.SentenceEncoder.load(layers=4, dtype="float32")
vectors = encoder.encode(task.sentences)
whiten = jaxvec.whitening(jaxvec.Moments.of(vectors), dim=128)


def cosines(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosines of the scored pairs, and of all pairs of unrelated first sentences."""
    first, second = np.split(x, 2)
    unit = first / np.linalg.norm(first, axis=1, keepdims=True)
    every = (unit @ unit.T)[np.triu_indices(len(unit), 1)]
    return cosine(first, second), every


figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
bins = np.linspace(-0.6, 1, 81)
for axis, name, x in (
    (axes[0], "raw, 384 dimensions", vectors),
    (axes[1], "whitened, 128 dimensions", np.asarray(whiten(vectors))),
):
    pairs, every = cosines(x)
    share = {"density": True, "bins": bins, "histtype": "stepfilled"}
    axis.hist(every, color="0.75", label="unrelated sentences", **share)
    axis.hist(
        pairs[gold >= 4],
        color="none",
        edgecolor="black",
        linewidth=1.3,
        label="same meaning (score ≥ 4)",
        **share,
    )
    axis.set(title=f"{name}: Spearman {spearman(pairs, gold):.3f}", xlabel="cosine", xlim=(-0.6, 1))
    axis.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("density")
axes[0].legend(frameon=False, loc="upper left")
figure.savefig(sys.argv[1], dpi=120)
