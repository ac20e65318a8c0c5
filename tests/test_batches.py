"""Ray's and Spark's calling conventions, by stand-ins: the vectors are those of encode, row by row."""

import pickle

import numpy as np
import pytest

from jaxvec import SentenceEncoder
from jaxvec.batches import EncodeBatches, encode_arrow


@pytest.fixture(scope="module")
def vectors(bert_folder, texts):
    return SentenceEncoder.load(bert_folder).encode(texts)


def map_batches(rows, function, fn_constructor_args, batch_size):
    """What Ray Data does: one object a worker, dicts of NumPy columns in and out."""
    function, arguments = pickle.loads(pickle.dumps((function, fn_constructor_args)))
    worker = function(*arguments)
    for start in range(0, len(rows["text"]), batch_size):
        yield worker({name: column[start : start + batch_size] for name, column in rows.items()})


def test_map_batches(bert_folder, texts, vectors):
    rows = {"text": np.array(texts, dtype=object), "row": np.arange(len(texts))}
    found = list(map_batches(rows, EncodeBatches, (str(bert_folder), "text"), batch_size=60))
    np.testing.assert_array_equal(np.concatenate([batch["row"] for batch in found]), rows["row"])
    np.testing.assert_allclose(np.concatenate([batch["vector"] for batch in found]), vectors, atol=1e-5)


def test_map_in_arrow(bert_folder, texts, vectors):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"row": range(len(texts)), "sentence": texts})
    partitions = [table.slice(0, 90), table.slice(90, 0), table.slice(90)]
    encode = encode_arrow(str(bert_folder), "sentence")
    found = pa.Table.from_batches(
        [out for part in partitions for out in encode(iter(part.to_batches(max_chunksize=50)))]
    )
    assert found.schema.names == ["row", "sentence", "vector"]
    assert found["sentence"].to_pylist() == texts
    np.testing.assert_allclose(np.array(found["vector"].to_pylist()), vectors, atol=1e-5)
