"""LCQMC: the figures that circulate for BERT's poolings, whitening and flow on its test split.

    python -m experiments lcqmc_table --data DATA

Two CPU cores, a two-block Chinese RoBERTa as the stand-in, bfloat16: some 3 minutes.

Of unknown origin. The nearest published rows are BERT-P4 of kexue.fm/archives/8348 (64.75 raw, 64.75 whitened), BERT-P3
(59.22) and BERT-P1 (41.71); "cls 33.1" agrees with neither [CLS] (41.71) nor the pooler (28.42) there. Whitening and
flow are taken to be of first and last block, fitted on all splits.
"""

from experiments.table import Row, Table


def _row(label: str, cell: float, calibrate: str = "raw", **settings: str) -> Row:
    model = {"model": "bert-base-chinese", "layers": "first_last"} | settings
    return Row(label=label, published={"lcqmc": cell}, calibrate=calibrate, **model)


TABLE = Table(
    title="LCQMC",
    source="unknown; see the file's docstring",
    columns=("lcqmc",),
    figure="all",
    rows=(
        _row("cls", 33.10, pooling="cls", layers="last"),
        _row("last avg", 60.60, layers="last"),
        _row("first-last avg", 64.97),
        _row("whitening", 65.32, "whitening"),
        _row("whitening-256", 65.94, "whitening:256"),
        _row("flow", 65.42, "flow:bert_flow"),
    ),
)
