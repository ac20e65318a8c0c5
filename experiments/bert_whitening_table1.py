"""BERT-whitening, Table 1: BERT without NLI supervision, raw and whitened, on seven STS tasks.

    python -m experiments bert_whitening_table1 --data DATA

Two CPU cores, base stand-in, bfloat16: some 10 minutes, nearly all of it encoding.

J. Su, J. Cao, W. Liu, Y. Ou, "Whitening Sentence Representations for Better Semantics and Faster Retrieval", 2021,
arXiv:2103.15316; github.com/bojone/BERT-whitening: first and last block, size-weighted means over subsets, "target" is
fitted on all splits with duplicates kept, "NLI" on SNLI and MultiNLI as far as they are in DATA.
"""

from experiments.table import ENGLISH, Row, Table, figures

COLUMNS = ENGLISH
BASE, LARGE = "bert-base-uncased", "bert-large-uncased"


def _row(model: str, label: str, cells: str, calibrate: str = "raw", fit: str = "target") -> Row:
    published = figures(COLUMNS, cells)
    return Row(
        label=label, published=published, model=model, layers="first_last", calibrate=calibrate, fit=fit
    )


TABLE = Table(
    title="BERT-whitening, Table 1",
    source="Su et al. 2021, arXiv:2103.15316; wmean",
    columns=COLUMNS,
    rows=(
        _row(BASE, "BERT-base-first-last-avg", "59.04 57.86 61.97 62.49 70.96 69.76 63.75"),
        _row(
            BASE, "BERT-base-whitening (NLI)", "68.19 61.69 65.70 66.02 75.11 73.11 63.6", "whitening", "nli"
        ),
        _row(
            BASE,
            "BERT-base-whitening-256 (NLI)",
            "67.51 61.46 66.71 66.17 74.82 72.10 64.9",
            "whitening:256",
            "nli",
        ),
        _row(BASE, "BERT-base-whitening (target)", "71.34 63.62 73.02 69.23 74.52 72.15 60.6", "whitening"),
        _row(
            BASE,
            "BERT-base-whitening-256 (target)",
            "71.43 63.89 73.76 69.08 74.59 74.40 62.2",
            "whitening:256",
        ),
        _row(LARGE, "BERT-large-first-last-avg", "59.59 57.73 61.17 61.18 68.07 70.25 60.34"),
        _row(
            LARGE,
            "BERT-large-whitening (NLI)",
            "68.54 62.54 67.31 67.12 75.00 76.29 62.4",
            "whitening",
            "nli",
        ),
        _row(
            LARGE,
            "BERT-large-whitening-384 (NLI)",
            "68.60 62.28 67.88 67.01 75.49 75.46 63.8",
            "whitening:384",
            "nli",
        ),
        _row(LARGE, "BERT-large-whitening (target)", "72.14 64.02 72.67 68.93 73.57 72.52 59.3", "whitening"),
        _row(
            LARGE,
            "BERT-large-whitening-384 (target)",
            "72.48 64.34 74.60 69.64 74.68 75.90 60.8",
            "whitening:384",
        ),
    ),
)
