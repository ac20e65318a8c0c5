"""BERT-flow, Table 5: simpler corrections of the last layer's average on STS-B, against the flow.

    python -m experiments bert_flow_table5 --data DATA

SN is `standardize`, NATSV (nulling away top-k singular vectors) is `remove-components:k`, both fitted on all splits.
Two minutes on two CPU cores, base stand-in, bfloat16.

B. Li et al., EMNLP 2020, arXiv:2011.05864, where k was chosen from 1 to 20 on the validation set.
"""

from experiments.table import Row, Table, figures


def _row(label: str, cell: str, calibrate: str = "raw") -> Row:
    return Row(
        label=label, published=figures(("stsb",), cell), model="bert-base-uncased", calibrate=calibrate
    )


TABLE = Table(
    title="BERT-flow, Table 5: calibration baselines on STS-B",
    source="Li et al. 2020, arXiv:2011.05864",
    columns=("stsb",),
    rows=(
        _row("BERT-base", "47.29"),
        _row("+ SN", "55.46", "standardize"),
        _row("+ NATSV (k = 1)", "51.79", "remove-components:1"),
        _row("+ NATSV (k = 10)", "60.40", "remove-components:10"),
        _row("+ SN + NATSV (k = 1)", "56.02", "standardize+remove-components:1"),
        _row("+ SN + NATSV (k = 6)", "63.51", "standardize+remove-components:6"),
        _row("BERT-flow (target)", "65.62", "flow:bert_flow"),
    ),
)
