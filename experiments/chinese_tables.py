"""The Chinese tables: five tasks, four poolings (P1 to P4), raw and whitened.

    python -m experiments chinese_tables --data DATA

Two CPU cores, a two-block Chinese RoBERTa as the stand-in, bfloat16: some 3 minutes. DATA holds LCQMC and STS-B-zh here;
the other tasks need their files (ATEC, BQ and PAWSX as github.com/bojone/BERT-whitening lays them out).

J. Su, kexue.fm/archives/8348 and 8321; whitening-256 of BERT from memory and unverified, SimBERT's from the article on
RoFormer-Sim. P1 is [CLS], P2 the pooler, P3 the last block's average, P4 that of first and last block, from the code
of BERT-whitening and not stated with the tables. Whitening is fitted on train, valid and test; where the train split is
missing it is fitted on what there is. `max_length` 64 (the published code takes 128 for PAWSX). NEZHA, WoBERT, RoFormer
and SimBERT are not of a family that jaxvec reads: published only. github.com/zyh3826/UnsupervisedChineseSTSPytorch has
far lower raw figures with the same model (LCQMC 54.51 for P4): a warning about pipelines, not a target.
"""

from experiments.table import Row, Table

COLUMNS = ("atec", "bq", "lcqmc", "pawsx-zh", "stsb-zh")
POOLINGS = {
    "P1": {"pooling": "cls"},
    "P2": {"pooling": "pooler"},
    "P3": {"pooling": "mean"},
    "P4": {"pooling": "mean", "layers": "first_last"},
}
BERT, ROBERTA = "bert-base-chinese", "hfl/chinese-roberta-wwm-ext"
NO_FAMILY = "not of a family that jaxvec reads"
# raw / whitening, in the order of the columns
CELLS = (
    (BERT, "BERT-P1", "16.59/20.61 29.35/25.76 41.71/48.92 15.15/17.03 34.65/61.19"),
    (BERT, "BERT-P2", "9.46/22.16 16.97/18.97 28.42/49.61 13.93/16.08 21.66/60.75"),
    (BERT, "BERT-P3", "20.79/18.27 33.08/22.58 59.22/60.12 16.68/18.37 57.48/63.97"),
    (BERT, "BERT-P4", "24.51/27.00 38.81/32.29 64.75/64.75 15.12/17.80 61.66/69.45"),
    (ROBERTA, "RoBERTa-wwm-ext-P1", "24.61/29.59 40.54/28.95 70.55/70.82 16.23/17.99 66.91/69.19"),
    (ROBERTA, "RoBERTa-wwm-ext-P2", "20.61/28.91 31.14/27.48 65.43/70.62 15.71/17.30 59.50/70.77"),
    (ROBERTA, "RoBERTa-wwm-ext-P3", "26.94/29.94 40.71/30.95 66.80/68.00 16.08/19.01 61.67/66.19"),
    (ROBERTA, "RoBERTa-wwm-ext-P4", "27.94/28.33 43.09/33.49 68.43/67.86 15.02/17.91 64.09/69.74"),
    (None, "NEZHA-P1", "17.39/18.83 29.63/21.94 40.60/50.52 14.90/18.15 35.84/60.84"),
    (None, "NEZHA-P3", "23.70/21.93 35.44/22.44 60.94/62.10 18.35/21.72 60.35/68.57"),
    (None, "NEZHA-P4", "27.72/25.31 44.18/31.47 65.16/66.68 13.98/16.66 61.94/69.55"),
    (None, "WoBERT-P4", "25.97/27.24 42.37/32.34 66.53/65.62 15.54/18.85 61.37/68.11"),
    (None, "RoFormer-P4", "25.92/27.38 41.75/32.36 66.18/65.45 15.30/18.36 61.40/68.02"),
    (None, "SimBERT-P1", "38.50/23.64 48.54/31.78 76.23/75.05 15.10/18.49 74.14/73.37"),
    (None, "SimBERT-P4", "33.53/29.04 45.28/34.70 73.20/71.22 14.16/17.32 66.98/70.55"),
)
WHITENING_256 = (
    (BERT, "BERT-P1", "25.58 34.66 49.18 15.98 60.07", "from memory, unverified"),
    (BERT, "BERT-P4", "27.91 37.67 65.65 15.34 69.37", "from memory, unverified"),
    (None, "SimBERT-P1", "30.79 40.01 74.50 15.64 75.29", NO_FAMILY),
    (None, "SimBERT-P2", "30.79 40.14 74.39 15.74 75.12", NO_FAMILY),
    (None, "SimBERT-P3", "31.24 40.98 73.43 15.87 72.00", NO_FAMILY),
    (None, "SimBERT-P4", "28.78 39.00 72.09 14.39 71.43", NO_FAMILY),
)


def _row(model: str | None, label: str, cells: list[str], calibrate: str, note: str) -> Row:
    published = dict(zip(COLUMNS, map(float, cells), strict=True))
    name = label if calibrate == "raw" else f"{label} {calibrate.replace(':', '-')}"
    settings = POOLINGS[label[-2:]] if model else {}
    return Row(label=name, published=published, model=model, calibrate=calibrate, note=note, **settings)


def _rows() -> list[Row]:
    rows = []
    for model, label, text in CELLS:
        pairs = [cell.split("/") for cell in text.split()]
        note = "" if model else NO_FAMILY
        for position, calibrate in enumerate(("raw", "whitening")):
            rows.append(_row(model, label, [pair[position] for pair in pairs], calibrate, note))
        for other, same, cells, remark in WHITENING_256:
            if (other, same) == (model, label):
                rows.append(_row(model, label, cells.split(), "whitening:256", remark))
    known = {label for _, label, _ in CELLS}
    rows += [
        _row(m, name, c.split(), "whitening:256", n) for m, name, c, n in WHITENING_256 if name not in known
    ]
    return rows


TABLE = Table(
    title="Chinese tasks: P1 to P4, raw and whitened",
    source="kexue.fm/archives/8348 and 8321",
    columns=COLUMNS,
    figure="all",
    rows=tuple(_rows()),
)
