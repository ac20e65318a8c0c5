"""BERT-flow, Table 2: BERT without NLI supervision, raw and after a flow, on seven STS tasks.

    python -m experiments bert_flow_table2 --data DATA

Downloads bert-base-uncased and bert-large-uncased; without a network, `--model bert-base-uncased=FOLDER` names a local
copy or a stand-in. Two CPU cores, base stand-in, bfloat16: some 20 minutes, most of it the flows.

B. Li, H. Zhou, J. He, M. Wang, Y. Yang, L. Li, "On the Sentence Embeddings from Pre-trained Language Models",
EMNLP 2020, arXiv:2011.05864. Its "last2avg" is the first block and the last, by the released code
(github.com/bohanli/BERT-flow), so `first_last`; STS12–16 are size-weighted means over subsets, although the paper says
SBERT's single correlation (T. Gao et al. 2021, arXiv:2104.08821, Appendix B). "target" is fitted on all splits, "NLI"
on SNLI and MultiNLI as far as they are in DATA. The flow is the released configuration, trained on cached vectors,
where the released code trains with BERT's dropout on.
"""

from experiments.table import ENGLISH, Row, Table, figures

COLUMNS = ("stsb", "sickr", *ENGLISH[1:6])


def _quoted(label: str, cells: str) -> Row:
    return Row(
        label=label,
        published=figures(COLUMNS, cells),
        note="quoted from SBERT, aggregated as one correlation",
    )


def _row(model: str, label: str, cells: str, layers: str = "first_last", **settings: str) -> Row:
    return Row(label=label, published=figures(COLUMNS, cells), model=model, layers=layers, **settings)


BASE, LARGE = "bert-base-uncased", "bert-large-uncased"
FLOW = {"calibrate": "flow:bert_flow"}
TABLE = Table(
    title="BERT-flow, Table 2",
    source="Li et al. 2020, arXiv:2011.05864; wmean",
    columns=COLUMNS,
    rows=(
        _quoted("Avg. GloVe", "58.02 53.76 55.14 70.66 59.73 68.25 63.66"),
        _quoted("Avg. BERT", "46.35 58.40 38.78 57.98 57.98 63.15 61.06"),
        _quoted("BERT CLS-vector", "16.50 42.63 20.16 30.01 20.09 36.88 38.03"),
        _row(BASE, "BERT-base", "47.29 58.21 49.07 55.92 54.75 62.75 65.19", layers="last"),
        _row(BASE, "BERT-base-last2avg", "59.04 63.75 57.84 61.95 62.48 70.95 69.81"),
        _row(BASE, "BERT-base-flow (NLI)", "58.56 65.44 59.54 64.69 64.66 72.92 71.84", **FLOW, fit="nli"),
        _row(BASE, "BERT-base-flow (target)", "70.72 63.11 63.48 72.14 68.42 73.77 75.37", **FLOW),
        _row(LARGE, "BERT-large", "46.99 53.74 46.89 53.32 49.27 56.54 61.63", layers="last"),
        _row(LARGE, "BERT-large-last2avg", "59.56 60.22 57.68 61.37 61.02 68.04 70.32"),
        _row(LARGE, "BERT-large-flow (NLI)", "68.09 64.62 61.72 66.05 66.34 74.87 74.47", **FLOW, fit="nli"),
        _row(LARGE, "BERT-large-flow (target)", "72.26 62.50 65.20 73.39 69.42 74.92 77.63", **FLOW),
    ),
)
