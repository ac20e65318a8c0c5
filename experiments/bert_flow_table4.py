"""BERT-flow, Table 4: question and answer sentence of QNLI, ROC-AUC of the cosine on the validation set.

    python -m experiments bert_flow_table4 --data DATA

QNLI is read from DATA/QNLI/dev.tsv as GLUE releases it, 1 for entailment; where it is missing, SNLI's test split stands
in (entailment against the rest), said so in the table. A minute on two CPU cores, base stand-in, bfloat16.

B. Li et al., EMNLP 2020, arXiv:2011.05864. The models are SBERT's, tuned on NLI; layers as in Table 2.
"""

from experiments.table import Row, Table, figures

BASE = "sentence-transformers/bert-base-nli-mean-tokens"
LARGE = "sentence-transformers/bert-large-nli-mean-tokens"


def _row(model: str, label: str, cell: str, **settings: str) -> Row:
    published = figures(("qnli",), cell)
    return Row(label=label, published=published, model=model, layers="first_last", figure="auc", **settings)


TABLE = Table(
    title="BERT-flow, Table 4: QNLI, AUC × 100",
    source="Li et al. 2020, arXiv:2011.05864",
    columns=("qnli",),
    figure="auc",
    in_place_of={"qnli": "snli"},
    rows=(
        _row(BASE, "BERT-base-NLI-last2avg", "70.30"),
        _row(BASE, "BERT-base-NLI-flow (NLI)", "72.52", calibrate="flow:bert_flow", fit="nli"),
        _row(BASE, "BERT-base-NLI-flow (target)", "76.17", calibrate="flow:bert_flow"),
        _row(LARGE, "BERT-large-NLI-last2avg", "70.41"),
        _row(LARGE, "BERT-large-NLI-flow (NLI)", "74.19", calibrate="flow:bert_flow", fit="nli"),
        _row(LARGE, "BERT-large-NLI-flow (target)", "77.09", calibrate="flow:bert_flow"),
    ),
)
