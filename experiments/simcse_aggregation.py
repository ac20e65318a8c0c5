"""SimCSE, Tables B.2 and C.1: the same vectors under both ways to aggregate STS12–16.

    python -m experiments simcse_aggregation --data DATA

The best check of an implementation: `all` is one correlation over all pairs of a year, `wmean` the size-weighted mean
over its subsets, and a method that wins by one loses by the other. Two CPU cores, stand-ins, bfloat16: with the other
tables nothing more to encode; the flows some 15 minutes.

T. Gao, X. Yao, D. Chen, "SimCSE", EMNLP 2021, arXiv:2104.08821, Appendices B and C. Their first-last average took the
embedding output and the last block until January 2022 (github.com/princeton-nlp/SimCSE, issue 133); the row "hidden
state 1" is what a user measured with the corrected code (issue 285), and what `first_last` means here.
"""

from experiments.table import Row, Table, figures

COLUMNS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")
BERT = {"model": "bert-base-uncased", "layers": "first_last"}
SBERT = {"model": "sentence-transformers/bert-base-nli-mean-tokens", "layers": "last"}
SBERT_TWO = SBERT | {"layers": "first_last"}
WHITENING, FLOW = {"calibrate": "whitening"}, {"calibrate": "flow:bert_flow"}
NLI = {"fit": "nli"}


def _row(label: str, cells: str, figure: str = "all", **settings: str) -> Row:
    return Row(label=label, published=figures(COLUMNS, cells), figure=figure, **settings)


TABLE = Table(
    title="SimCSE, Tables B.2 and C.1: aggregation",
    source="Gao et al. 2021, arXiv:2104.08821",
    columns=COLUMNS,
    max_length=64,
    rows=(
        _row(
            "BERT first-last (embedding, all)",
            "39.70 59.38 49.67 66.03 66.19 53.87 62.06",
            **BERT | {"layers": "embedding_last"},
        ),
        _row("BERT first-last (hidden state 1, all)", "45.09 64.30 54.56 70.52 67.87 59.05 63.75", **BERT),
        _row("SBERT-base (all)", "70.97 76.53 73.19 79.09 74.30 76.98 72.91", **SBERT),
        _row("SBERT-base (wmean)", "66.35 73.76 73.88 77.33 73.62 76.98 72.91", "wmean", **SBERT),
        _row(
            "BERT-whitening (NLI, all)",
            "57.83 66.90 60.89 75.08 71.30 68.23 63.73",
            **BERT,
            **WHITENING,
            **NLI,
        ),
        _row(
            "BERT-whitening (NLI, wmean)",
            "61.43 65.90 65.96 74.80 73.10 68.23 63.73",
            "wmean",
            **BERT,
            **WHITENING,
            **NLI,
        ),
        _row(
            "BERT-whitening (target, all)", "42.88 77.77 66.27 63.60 67.58 71.34 60.40", **BERT, **WHITENING
        ),
        _row(
            "BERT-whitening (target, wmean)",
            "63.38 73.01 69.13 74.48 72.56 71.34 60.40",
            "wmean",
            **BERT,
            **WHITENING,
        ),
        _row("BERT-flow (NLI, all)", "58.40 67.10 60.85 75.16 71.22 68.66 64.47", **BERT, **FLOW, **NLI),
        _row("BERT-flow (target, all)", "53.15 78.38 66.02 62.09 70.84 71.70 61.97", **BERT, **FLOW),
        _row(
            "SBERT-flow (NLI, all)", "69.78 77.27 74.35 82.01 77.46 79.12 76.21", **SBERT_TWO, **FLOW, **NLI
        ),
        _row("SBERT-flow (target, all)", "66.18 82.69 76.22 73.72 75.71 79.99 73.82", **SBERT_TWO, **FLOW),
        _row(
            "SBERT-whitening (NLI, all)",
            "69.65 77.57 74.66 82.27 78.39 79.52 76.91",
            **SBERT_TWO,
            **WHITENING,
            **NLI,
        ),
        _row(
            "SBERT-whitening (target, all)",
            "52.91 81.91 75.44 72.24 72.93 80.50 72.54",
            **SBERT_TWO,
            **WHITENING,
        ),
        Row(
            label="Unsup. SimCSE-BERT-base (wmean)",
            figure="wmean",
            model="princeton-nlp/unsup-simcse-bert-base-uncased",
            pooling="cls",
            published=figures(COLUMNS, "70.14 79.56 75.91 81.46 79.07 76.85 72.23"),
        ),
        Row(
            label="Sup. SimCSE-BERT-base (wmean)",
            figure="wmean",
            model="princeton-nlp/sup-simcse-bert-base-uncased",
            pooling="pooler",
            published=figures(COLUMNS, "70.90 81.49 80.19 83.79 81.89 84.25 80.39"),
        ),
    ),
)
