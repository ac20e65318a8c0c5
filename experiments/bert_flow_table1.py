"""BERT-flow, Table 1: norms and neighbour distances of BERT's word embeddings, by how frequent the words are.

    python -m experiments bert_flow_table1 --data DATA

Frequencies are counted on DATA/corpus/*.txt, one sentence a line. Here that is 11,900 sentences of English Wikipedia
instead of the paper's dump, too few to tell ranks beyond some 5,000 apart. Half a minute on two CPU cores.

B. Li et al., EMNLP 2020, arXiv:2011.05864. The paper's last column reads "[5K, 1K)"; 10K is meant.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from experiments.setup import Setup
from experiments.table import Row, Table, figures
from jaxvec import InputError, SentenceEncoder
from jaxvec.evaluation.frequency import FrequencyBand, frequency_bands, token_counts, word_embeddings
from jaxvec.textfiles import read_sentences

COLUMNS = ("[0, 100)", "[100, 500)", "[500, 5K)", "[5K, 10K)")


def measure(setup: Setup, row: Row) -> Mapping[str, float]:
    """The row's figure in every band."""
    bands = _bands(setup.model(row.model).encoder(TABLE.max_length), setup.data)
    kind, _, k = row.label.partition(", k = ")
    values = {
        "mean ℓ2 norm": lambda band: band.mean_norm,
        "mean k-NN ℓ2 distance": lambda band: band.neighbour_distance[int(k)],
        "mean k-NN dot product": lambda band: band.neighbour_dot[int(k)],
    }
    return {column: values[kind](band) for column, band in zip(COLUMNS, bands, strict=True)}


@cache
def _bands(encoder: SentenceEncoder, data: Path) -> list[FrequencyBand]:
    return frequency_bands(word_embeddings(encoder), token_counts(encoder, _sentences(data)))


def _sentences(data: Path) -> Iterator[str]:
    files = sorted((data / "corpus").glob("*.txt"))
    if not files:
        raise InputError(f"no corpus to count words in: looked for {data / 'corpus'}/*.txt")
    return (sentence for file in files for sentence in read_sentences(file, errors="replace"))


def _row(label: str, cells: str) -> Row:
    return Row(label=label, published=figures(COLUMNS, cells), model="bert-base-uncased")


TABLE = Table(
    title="BERT-flow, Table 1: word embeddings by frequency rank",
    source="Li et al. 2020, arXiv:2011.05864; lengths, not × 100",
    columns=COLUMNS,
    measure=measure,
    reads=lambda setup: _sentences(setup.data),
    rows=(
        _row("mean ℓ2 norm", "0.95 1.04 1.22 1.45"),
        _row("mean k-NN ℓ2 distance, k = 3", "0.77 0.93 1.16 1.30"),
        _row("mean k-NN ℓ2 distance, k = 5", "0.83 0.99 1.22 1.34"),
        _row("mean k-NN ℓ2 distance, k = 7", "0.87 1.04 1.26 1.37"),
        _row("mean k-NN dot product, k = 3", "0.73 0.92 1.20 1.63"),
        _row("mean k-NN dot product, k = 5", "0.73 0.91 1.19 1.61"),
        _row("mean k-NN dot product, k = 7", "0.72 0.90 1.17 1.60"),
    ),
)
