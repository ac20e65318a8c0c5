"""BERT-whitening, Table 2: SBERT models tuned on NLI, raw and whitened, on seven STS tasks.

    python -m experiments bert_whitening_table2 --data DATA

Two CPU cores, all-MiniLM-L6-v2 as the stand-in, bfloat16: some 3 minutes. That model is tuned on far more than NLI,
which is why whitening does less for it.

J. Su et al. 2021, arXiv:2103.15316; protocol as in Table 1.
"""

from experiments.table import ENGLISH, Row, Table, figures

COLUMNS = ENGLISH
BASE = "sentence-transformers/bert-base-nli-mean-tokens"
LARGE = "sentence-transformers/bert-large-nli-mean-tokens"


def _row(model: str, label: str, cells: str, calibrate: str = "raw", fit: str = "target") -> Row:
    published = figures(COLUMNS, cells)
    return Row(
        label=label, published=published, model=model, layers="first_last", calibrate=calibrate, fit=fit
    )


TABLE = Table(
    title="BERT-whitening, Table 2",
    source="Su et al. 2021, arXiv:2103.15316; wmean",
    columns=COLUMNS,
    rows=(
        _row(BASE, "SBERT-base-NLI-first-last-avg", "77.63 68.70 74.37 74.73 79.65 75.21 74.84"),
        _row(
            BASE,
            "SBERT-base-NLI-whitening (NLI)",
            "78.66 69.11 75.79 75.76 82.31 79.61 76.33",
            "whitening",
            "nli",
        ),
        _row(
            BASE,
            "SBERT-base-NLI-whitening-256 (NLI)",
            "79.16 69.87 77.11 76.13 82.73 78.08 76.44",
            "whitening:256",
            "nli",
        ),
        _row(
            BASE,
            "SBERT-base-NLI-whitening (target)",
            "80.50 69.01 78.10 77.04 80.83 77.93 72.54",
            "whitening",
        ),
        _row(
            BASE,
            "SBERT-base-NLI-whitening-256 (target)",
            "80.80 69.97 79.48 78.12 81.60 79.07 75.06",
            "whitening:256",
        ),
        _row(LARGE, "SBERT-large-NLI-first-last-avg", "79.16 70.00 76.55 76.33 80.40 77.02 76.56"),
        _row(
            LARGE,
            "SBERT-large-NLI-whitening (NLI)",
            "79.55 70.41 76.78 76.88 82.84 81.19 75.93",
            "whitening",
            "nli",
        ),
        _row(
            LARGE,
            "SBERT-large-NLI-whitening-384 (NLI)",
            "80.70 70.97 78.36 77.64 83.32 80.98 77.10",
            "whitening:384",
            "nli",
        ),
        _row(
            LARGE,
            "SBERT-large-NLI-whitening (target)",
            "81.10 69.95 77.76 77.56 80.78 77.40 71.69",
            "whitening",
        ),
        _row(
            LARGE,
            "SBERT-large-NLI-whitening-384 (target)",
            "82.22 71.25 80.05 78.96 82.53 80.36 74.05",
            "whitening:384",
        ),
    ),
)
