"""BERT-whitening, the dimension curve: Spearman on each task against the dimension k of the whitened vectors.

    python -m experiments bert_whitening_dimension --data DATA

Two CPU cores, base stand-in, bfloat16: some 8 minutes.

J. Su et al. 2021, arXiv:2103.15316, Figure 1 and §4.4: curves without figures, but for SICK-R, which peaks at 66.52 with
k = 109 when fitted on NLI. Protocol as in Table 1.
"""

from experiments.table import ENGLISH, Row, Table

DIMENSIONS = (16, 32, 64, 109, 128, 192, 256, 320, 384, 512, 640, 768)


def _row(k: int, fit: str) -> Row:
    published = {"sickr": 66.52} if (k, fit) == (109, "nli") else {}
    setting = {
        "model": "bert-base-uncased",
        "layers": "first_last",
        "calibrate": f"whitening:{k}",
        "fit": fit,
    }
    return Row(label=f"k = {k} ({'NLI' if fit == 'nli' else fit})", published=published, **setting)


TABLE = Table(
    title="BERT-whitening, dimension curve",
    source="Su et al. 2021, arXiv:2103.15316, Figure 1 and §4.4; wmean",
    columns=ENGLISH,
    rows=tuple(_row(k, fit) for fit in ("nli", "target") for k in DIMENSIONS),
)
