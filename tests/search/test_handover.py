"""What is handed over finds the same documents as the index itself."""

import json
import sys

import numpy as np
import pytest

from jaxvec import Index, InputError
from jaxvec.search.handover import to_faiss, to_usearch, write_documents, write_faiss, write_usearch

faiss = pytest.importorskip("faiss")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """On a busy machine FAISS's threads wait for each other longer than they work."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


@pytest.fixture(scope="module", params=["cosine", "dot"])
def index(request, encoder, texts, tmp_path_factory, principal):
    folder = tmp_path_factory.mktemp("index") / "index"
    index = Index.build(folder, encoder, texts, calibrate=principal(16), metric=request.param)
    return index.remove(range(0, 200, 7))


@pytest.fixture(scope="module")
def queries(index, texts):
    vectors = index.encoder.encode(texts[:30], normalize=False)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_faiss_flat_gives_the_same_results(index, queries):
    scores, numbers = index.top_k(queries, 10)
    found, ids = to_faiss(index).search(queries, 10)
    assert np.abs(found - scores).max() < 1e-5 * np.abs(scores).max()
    assert np.array_equal(ids[:, 0], numbers[:, 0])
    assert np.mean(ids == numbers) > 0.99


def test_the_calibration_as_a_faiss_transform_takes_the_encoders_own_vectors(index, encoder, texts):
    own = encoder.encode(texts[:30], normalize=False)
    scores, numbers = index.top_k(index.encoder.encode(texts[:30], normalize=False), 10)
    found, ids = to_faiss(index, raw_queries=True).search(own, 10)
    assert np.abs(found - scores).max() < 1e-3 * np.abs(scores).max()
    assert np.mean(ids == numbers) > 0.98


def test_approximate_indexes_find_nearly_the_same(index, queries):
    expected = index.top_k(queries, 1)[1][:, 0]
    assert np.mean(to_faiss(index, "hnsw").search(queries, 1)[1][:, 0] == expected) > 0.9
    with pytest.raises(InputError, match="at least 256 documents, the index holds 171; take flat"):
        to_faiss(index, "ivf-pq")
    with pytest.raises(InputError, match="kind is 'lsh'; expected one of flat, hnsw, ivf-pq"):
        to_faiss(index, "lsh")


def test_ivf_pq(encoder, texts, tmp_path, principal):
    documents = [f"{text} {number}" for number, text in enumerate(texts * 2)]
    index = Index.build(tmp_path / "index", encoder, documents, calibrate=principal(4))
    queries = index.vectors[0:50]
    made = to_faiss(index, "ivf-pq")
    faiss.extract_index_ivf(made).nprobe = 10
    ids = made.search(queries, 10)[1]
    assert np.mean([number in row for number, row in enumerate(ids)]) > 0.8


def test_usearch_finds_nearly_the_same(index, queries):
    pytest.importorskip("usearch")
    expected = index.top_k(queries, 1)[1][:, 0]
    assert np.mean(to_usearch(index).search(queries, 1).keys.ravel() == expected) > 0.9


def test_files_load_in_the_programs_they_are_for(index, queries, tmp_path):
    usearch = pytest.importorskip("usearch.index")
    write_faiss(index, tmp_path / "flat.faiss")
    write_usearch(index, tmp_path / "documents.usearch")
    write_documents(index, tmp_path / "vectors.npy")
    loaded = faiss.read_index(str(tmp_path / "flat.faiss"))
    assert np.array_equal(loaded.search(queries, 5)[1], to_faiss(index).search(queries, 5)[1])
    restored = usearch.Index.restore(str(tmp_path / "documents.usearch"))
    assert len(restored) == len(index)
    kept = np.flatnonzero(index.valid)
    assert np.array_equal(np.load(tmp_path / "vectors.npy"), index.vectors[kept])
    with pytest.raises(InputError, match=r"expected a name ending in \.npy or \.parquet"):
        write_documents(index, tmp_path / "vectors.csv")


def test_parquet_rows_are_what_databases_take(index, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_documents(index, tmp_path / "documents.parquet")
    table = parquet.read_table(tmp_path / "documents.parquet")
    assert table.schema.metadata[b"dim"] == b"16"
    assert table.schema.metadata[b"metric"].decode() == index.meta["metric"]
    row = table.slice(5, 1).to_pylist()[0]
    number = int(np.flatnonzero(index.valid)[5])
    assert (row["id"], row["text"]) == (number, index.text(number))
    literal = str(row["vector"])  # pgvector's input: '[1.5,-2,…]'
    assert np.array_equal(np.array(json.loads(literal), np.float32), index.vectors[number : number + 1][0])
    point = {"id": row["id"], "vector": row["vector"], "payload": {"text": row["text"]}}  # Qdrant's
    assert isinstance(point["id"], int)
    assert len(point["vector"]) == 16


def test_a_transform_needs_a_linear_calibration(encoder, tmp_path):
    index = Index.build(tmp_path / "index", encoder, ["it rains", "the man plays"])
    with pytest.raises(InputError, match="has no calibration, so there is no FAISS transform"):
        to_faiss(index, raw_queries=True)


@pytest.mark.parametrize("name", ["faiss", "usearch.index", "pyarrow"])
def test_what_is_not_installed_is_named(index, tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    write = {"faiss": write_faiss, "usearch.index": write_usearch, "pyarrow": write_documents}[name]
    with pytest.raises(InputError, match=rf"{name[:7]}.*pip install 'jaxvec\["):
        write(index, tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())
