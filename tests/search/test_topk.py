"""Top-k equals brute force: whatever the sizes, the ties, the devices and the storage."""

import numpy as np
import pytest

from jaxvec import InputError
from jaxvec.search import corpus as module
from jaxvec.search.corpus import Corpus, top_k
from jaxvec.search.storage import STORAGE, checked_queries

EIGHT = """
import json, os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, numpy as np
from jaxvec.search import corpus
corpus.BLOCK_BYTES["cpu"] = 16384  # several blocks
rng = np.random.default_rng(0)
same = []
for n, k in ((1, 3), (2999, 7)):
    vectors, queries = (rng.integers(-3, 4, (m, 13)).astype(np.float32) for m in (n, 10))
    scores, rows = corpus.top_k(queries, vectors, k, metric="dot")
    exact = queries @ vectors.T
    order = np.argsort(-exact, axis=1, kind="stable")[:, :k]
    same.append(bool((rows == order).all() and (scores == np.take_along_axis(exact, order, 1)).all()))
vectors[1500, 3] = np.nan
try:
    corpus.top_k(queries, vectors, 3)
except corpus.InputError:
    same.append("refused")
print(json.dumps([jax.local_device_count(), same]))
"""


def brute_force(queries, vectors, k):
    """NumPy: every score, ranked by score and then by row."""
    scores = queries @ vectors.T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=1), order


def integers(rng, n, dim):
    """Whole numbers: their products are exact in float32, and full of ties."""
    return rng.integers(-3, 4, (n, dim)).astype(np.float32)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks even for small data: 2,048 rows of 13 coordinates each."""
    monkeypatch.setitem(module.BLOCK_BYTES, "cpu", 2048 * 13 * 4)


@pytest.mark.parametrize("n", [1, 2, 65, 2048, 6143])
@pytest.mark.parametrize("k", [1, 10, 200])
def test_equals_brute_force_ties_included(n, k):
    rng = np.random.default_rng(n)
    vectors, queries = integers(rng, n, 13), integers(rng, 9, 13)
    scores, rows = top_k(queries, vectors, k, metric="dot")
    expected, order = brute_force(queries, vectors, k)
    assert rows.shape == (9, min(k, n))
    assert np.array_equal(rows, order)
    assert np.array_equal(scores, expected)


def test_equals_brute_force_on_eight_devices(run_python):
    assert run_python(EIGHT) == [8, [True, True, "refused"]]


def test_zeros_of_either_sign_are_a_tie():
    vectors = np.array([[-1.0], [0.0], [-0.0], [0.0]] * 400, np.float32)
    _, rows = top_k(np.array([[0.0]], np.float32), vectors, 5, metric="dot")
    assert rows.tolist() == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("queries", [1, 2, 8, 300])
def test_cosine_of_real_values(queries):
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((5000, 40), dtype=np.float32) * rng.uniform(0.1, 9, (5000, 1))
    vectors = vectors.astype(np.float32)
    vectors[7] = 0
    asked = rng.standard_normal((queries, 40), dtype=np.float32)
    scores, rows = top_k(asked, vectors, 10)
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    expected, order = brute_force(asked / np.linalg.norm(asked, axis=1, keepdims=True), unit, 10)
    assert np.abs(scores - expected).max() < 1e-6
    gaps = np.abs(np.diff(expected, axis=1)).min(axis=1) > 1e-5
    assert gaps.any()
    assert np.array_equal(rows[gaps], order[gaps])


def test_a_zero_vector_has_cosine_zero_with_everything():
    vectors = np.array([[-1, 0], [0, 0], [1, 0]], np.float32)
    scores, rows = top_k(np.array([[1, 0], [0, 0]], np.float32), vectors, 3)
    assert scores.tolist() == [[1, 0, -1], [0, 0, 0]]
    assert rows.tolist() == [[2, 1, 0], [0, 1, 2]]


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_coarse_storage_finds_what_float32_finds(dtype, metric):
    rng = np.random.default_rng(2)
    vectors, asked = (rng.standard_normal((n, 64), dtype=np.float32) for n in (20_000, 200))
    scores, rows = top_k(asked, vectors, 10, metric=metric, dtype=dtype)
    expected, order = top_k(asked, vectors, 10, metric=metric)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows, order, strict=True)])
    assert recall >= 0.999
    assert np.abs(scores - expected).max() < 1e-3
    assert Corpus.of(vectors, dtype=dtype).codes.nbytes * (2 if dtype == "bfloat16" else 4) == vectors.nbytes


def test_jax_arrays_memory_maps_and_resident_blocks_agree(tmp_path, monkeypatch):
    import jax.numpy as jnp

    rng = np.random.default_rng(3)
    vectors, asked = integers(rng, 5001, 13), integers(rng, 4, 13)
    np.save(tmp_path / "v.npy", vectors)
    expected = brute_force(asked, vectors, 6)
    corpora = [vectors, jnp.asarray(vectors), np.load(tmp_path / "v.npy", mmap_mode="r")]
    for stored in corpora:
        assert np.array_equal(Corpus.of(stored, metric="dot").top_k(asked, 6)[1], expected[1])
    reads = []

    class Counted(np.ndarray):
        def __getitem__(self, at):
            reads.append(at)
            return np.asarray(self)[at]

    monkeypatch.setattr(module, "_free_bytes", lambda rows: 1 << 30)
    resident = Corpus.of(vectors.view(Counted), metric="dot")
    assert np.array_equal(resident.top_k(asked, 6)[1], expected[1])
    before = len(reads)
    assert before == 3
    assert np.array_equal(resident.top_k(asked, 6)[1], expected[1])
    assert len(reads) == before


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_removed_rows_are_never_found(dtype):
    rng = np.random.default_rng(4)
    vectors, asked = integers(rng, 3000, 13), integers(rng, 5, 13)
    valid = rng.random(3000) < 0.5
    _, rows = Corpus.of(vectors, metric="dot", dtype=dtype, valid=valid).top_k(asked, 10)
    kept = np.flatnonzero(valid)
    assert np.array_equal(rows, kept[brute_force(asked, vectors[valid], 10)[1]])
    vectors[~valid] = np.nan  # whatever they hold
    again = Corpus.of(vectors, metric="dot", dtype=dtype, valid=valid).top_k(asked, 10)[1]
    assert np.array_equal(again, rows)
    nothing = Corpus.of(vectors, valid=np.zeros(3000, bool))
    assert nothing.top_k(asked, 3)[1].shape == (5, 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_one_value_that_is_not_finite_is_noticed(value, dtype, metric):
    vectors = np.random.default_rng(6).standard_normal((3000, 13)).astype(np.float32)
    asked = np.abs(vectors[:2])
    vectors[1500, 3] = value
    with pytest.raises(InputError, match=r"a vector .* not finite"):
        top_k(asked, vectors, 3, metric=metric, dtype=dtype)


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("length", [1e-30, 1e-22, 1e-19, 1e-15, 1e18, 1e20, 1e36])
def test_lengths_that_float32_cannot_square(length, dtype):
    """Cosine does not depend on them; an inner product does, and is right as long as it is a float32."""
    rng = np.random.default_rng(11)
    vectors, asked = rng.standard_normal((3000, 13)), rng.standard_normal((5, 13))
    some = np.where(np.arange(3000) % 3 == 0, length, 1)[:, None]
    scores, rows = brute_force(*(x / np.linalg.norm(x, axis=1, keepdims=True) for x in (asked, vectors)), 7)
    found, where = top_k(
        (asked * length).astype(np.float32), (vectors * some).astype(np.float32), 7, dtype=dtype
    )
    assert np.array_equal(where, rows)
    np.testing.assert_allclose(found, scores, atol=1e-6)
    if length > 1:
        scores, rows = brute_force(asked, vectors * some, 7)
        found, where = top_k(asked, (vectors * some).astype(np.float32), 7, metric="dot", dtype=dtype)
        assert np.array_equal(where, rows)
        np.testing.assert_allclose(found, scores, rtol=1e-5)


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("dtype", STORAGE)
def test_an_inner_product_that_may_overflow_is_refused(queries, dtype):
    vectors = np.ones((3000, 64), np.float32)
    vectors[1500, :2] = 1e15, -1e15  # inf − inf on the way
    with pytest.raises(InputError, match="may overflow"):
        top_k(np.full((queries, 64), 1e25), vectors, 1, metric="dot", dtype=dtype)
    with pytest.raises(InputError, match="may overflow"):  # every one of them is −inf
        top_k(np.full((queries, 64), 1e25), -1e15 * np.ones((20, 64)), 3, metric="dot", dtype=dtype)
    with pytest.raises(InputError, match="may overflow"):  # a query whose own length does
        top_k(np.full((queries, 64), 3e38), np.ones((20, 64)), 3, metric="dot", dtype=dtype)


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.longdouble])
def test_numbers_of_more_than_four_bytes(kind):
    scores, rows = top_k(np.ones((1, 1)), np.array([[3_000_000_000], [1], [2]], kind), 3, metric="dot")
    assert scores.tolist() == [[3e9, 2, 1]]
    assert rows.tolist() == [[0, 2, 1]]


def test_queries_that_are_no_real_numbers_are_refused():
    for queries in (np.array([["a", "b"]]), np.eye(2) * 1j):
        with pytest.raises(InputError, match="expected real numbers"):
            checked_queries(queries, 2)
    with pytest.raises(InputError, match="not finite in float32"):
        top_k(np.array([[1e300, 0]]), np.eye(2), 1)
    with pytest.raises(InputError, match=r"valid is bool \[2\]; expected bool \[3\]"):
        Corpus.of(np.eye(3), valid=np.ones(2, bool))


@pytest.mark.parametrize("kind", ["<f2", ">f4", "<f8", "i1", "bool"])
def test_vectors_of_every_type_and_order(kind):
    rng = np.random.default_rng(7)
    vectors, asked = integers(rng, 3000, 13).astype(kind), integers(rng, 4, 13)
    expected = brute_force(asked, vectors.astype(np.float32), 5)
    for stored in (vectors, np.asfortranarray(vectors), vectors[::-1][::-1]):
        scores, rows = top_k(asked, stored, 5, metric="dot")
        assert np.array_equal(rows, expected[1])
        assert np.array_equal(scores, expected[0])


def test_nothing_to_find_and_nobody_asking():
    assert top_k(np.ones((3, 5), np.float32), np.empty((0, 5), np.float32), 4)[1].shape == (3, 0)
    assert top_k(np.empty((0, 5), np.float32), np.ones((9, 5), np.float32), 4)[0].shape == (0, 4)


def test_other_numbers_of_queries_and_rows_compile_nothing(compiled):
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((5000, 13), dtype=np.float32)
    top_k(vectors[:100], vectors, 3)
    before = len(compiled)
    top_k(vectors[:90], vectors[:4700], 3)
    assert len(compiled) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k is 0; expected a whole number of at least 1"),
        ({"k": -2}, "k is -2"),
        ({"k": True}, "k is True"),
        (
            {"queries": np.ones((2, 4), np.float32)},
            r"queries have shape \(2, 4\); this corpus takes \[q, 5\]",
        ),
        ({"queries": np.full((2, 5), np.nan, np.float32)}, "a query holds a value that is not finite"),
        ({"vectors": np.full((9, 5), np.nan, np.float32)}, "the corpus holds a vector that is not finite"),
        ({"vectors": np.ones(5, np.float32)}, r"vectors have shape \(5,\); expected \[n, dim\]"),
        ({"vectors": np.ones((9, 5), complex)}, "vectors hold complex128; expected real numbers"),
        ({"vectors": np.full((9, 5), "a")}, "vectors hold <U1; expected real numbers"),
        ({"metric": "euclid"}, "metric is 'euclid'; expected one of cosine, dot"),
        ({"dtype": "int4"}, "dtype is 'int4'; expected one of float32, bfloat16, int8"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {
        "queries": np.ones((2, 5), np.float32),
        "vectors": np.ones((9, 5), np.float32),
        "k": 3,
    } | change
    with pytest.raises(InputError, match=message):
        top_k(**arguments)
