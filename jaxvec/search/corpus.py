"""Vectors made ready for search: kept on the devices where they fit, streamed through them where not."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from jaxvec.errors import InputError
from jaxvec.pipeline import local_rows
from jaxvec.search.storage import (
    STORAGE,
    Rows,
    as_float32,
    check_choice,
    check_count,
    check_rows,
    checked_queries,
    masked,
    quantize,
    unit_rows,
)
from jaxvec.search.topk import Best, corrections, merged, nothing_yet, row_lengths, sharded_top_k

BLOCK_BYTES = {"cpu": 16 * 2**20}  # of float32 rows scored at a time, on all devices; elsewhere 256 MiB
QUERIES = {"cpu": 512}  # scored at a time; elsewhere 1,024
# On a CPU the scores of a block stay in memory that malloc keeps; what the kernel gives afresh took half of the time.
_SCORED_ROWS = {"cpu": 16_384}  # at a time, on all devices; elsewhere as many as a block holds
METRICS = ("cosine", "dot")
_IN_FLIGHT = 2  # blocks sent ahead
_RESCORED = 256  # queries whose candidates are in memory together


@dataclass(frozen=True, eq=False)
class Corpus:
    """Vectors to search in, made by `Corpus.of`.

    Attributes:
        vectors: float32 [n, dim]; coarse scores are corrected by them.
        codes: what is scored: `vectors` themselves, or the same as bfloat16 or int8.
        scale: float32 [n], the unit of each row's int8 codes; else None.
        valid: bool [n], False where a row was removed; None where none was.
        metric: "cosine" or "dot".
        unit: whether the vectors have length 1 already.
    """

    vectors: Any
    codes: Any
    scale: np.ndarray | None
    valid: np.ndarray | None
    metric: str
    unit: bool = False
    _placed: list[Any] = field(default_factory=list, repr=False)
    _lengths: dict[Any, Any] = field(default_factory=dict, repr=False)  # by the first row of a block

    @classmethod
    def of(
        cls,
        vectors: Rows,
        *,
        metric: str = "cosine",
        dtype: str = "float32",
        valid: Bool[np.ndarray, " n"] | None = None,
    ) -> "Corpus":
        """Makes vectors ready: a memory map stays on disk, and is streamed.

        Args:
            vectors: float [n, dim]; any length, whatever memory the devices have.
            metric: "cosine", or "dot" for the inner product.
            dtype: what is stored for scoring. "bfloat16" and "int8" are a half and a quarter of the bytes on the
                device; the 2k + 16 best by these codes are scored again in float32. That is the exact answer unless
                more rows than that lie within the codes' rounding of the k-th, as many near-copies do.
            valid: bool [n]; rows marked False are never found, whatever they hold.

        Raises:
            InputError: another metric or dtype, vectors that are not numbers [n, dim], for bfloat16 and int8 one that
                is not finite, or another `valid`.

        Example:
            >>> corpus = Corpus.of(np.eye(3, dtype=np.float32), dtype="int8")
            >>> scores, indices = corpus.top_k(np.array([[1.0, 2.0, 0.0]], np.float32), 2)
            >>> indices.tolist(), scores.round(2)
            ([[1, 0]], array([[0.89, 0.45]], dtype=float32))
        """
        check_choice("metric", metric, METRICS)
        check_choice("dtype", dtype, STORAGE)
        check_rows(vectors)
        if valid is not None:
            valid = np.asarray(valid)
            if valid.dtype != bool or valid.shape != vectors.shape[:1]:
                raise InputError(
                    f"valid is {valid.dtype} {list(valid.shape)}; expected bool [{vectors.shape[0]}], one for each vector"
                )
        codes, scale = (vectors, None) if dtype == "float32" else quantize(vectors, dtype, metric, valid)
        return cls(vectors, codes, scale, valid, metric)

    def __len__(self) -> int:
        return self.vectors.shape[0]

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.vectors.shape[1]

    @property
    def exact(self) -> bool:
        """Whether the scores of the scan are final."""
        return self.codes is self.vectors

    def top_k(
        self, queries: Float[Array | np.ndarray, "q dim"], k: int
    ) -> tuple[Float[np.ndarray, "q m"], Int[np.ndarray, "q m"]]:
        """The k best rows for each query.

        Args:
            queries: float [q, dim].
            k: how many, at least 1.

        Returns:
            Scores float32 [q, m], descending, and row numbers int32 [q, m], m = min(k, rows that are valid). Rows of
            equal score come in the order of their numbers. The result does not depend on the number of devices,
            but for the rounding of float32 scores (1e-6 of the vectors' lengths).

        Raises:
            InputError: queries of another width, k < 1, a vector that is not finite, or a row and a query so long that
                their inner product may overflow float32.
        """
        check_count(k)
        queries = checked_queries(queries, self.dim)
        if self.metric == "cosine":
            queries = unit_rows(queries)
        there = len(self) if self.valid is None else int(self.valid.sum())
        wanted = min(int(k), there)
        if not wanted or not len(queries):
            return np.empty((len(queries), wanted), np.float32), np.empty((len(queries), wanted), np.int32)
        if self.exact:
            return self._scan(queries, wanted)
        # Of real and of random vectors' int8 codes the first 26 hold the true 10 (the first 16: 0.998 of them).
        _, found = self._scan(queries, min(there, 2 * wanted + 16))
        return self._rescore(queries, found, wanted)

    def _scan(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        # No partial sum of an inner product is larger than the product of the two lengths.
        longest = as_float32(np.sqrt(np.square(queries, dtype=np.float64).sum(axis=1).max()))
        rows = local_rows()
        everywhere = NamedSharding(rows.mesh, PartitionSpec())
        step = sharded_top_k(rows.mesh)
        parts = [jax.device_put(part, everywhere) for part in _query_parts(queries)]
        best: list[Best] = [nothing_yet(rows.mesh, len(part), k) for part in parts]
        cosine = self.metric == "cosine" and self.exact and not self.unit
        unit = self.metric == "cosine" and not cosine
        sent: list[Any] = []
        for codes, scale, valid, start in self._blocks(rows):
            if not unit and start not in self._lengths:
                self._lengths[start] = row_lengths(codes)
            scale, bias = _corrections(self._lengths.get(start), scale, valid, longest, cosine=cosine)
            if len(parts) > 1 and codes.dtype != jnp.float32:
                codes = _widened(codes)  # once, not in every step
            for number, part in enumerate(parts):
                best[number] = step(best[number], part, codes, scale, bias, start)
            sent.append(best[-1][0])
            if len(sent) > _IN_FLIGHT:
                jax.block_until_ready(sent.pop(0))
        pairs = [merged(part) for part in best]
        scores, indices = (np.concatenate(part)[: len(queries)] for part in zip(*pairs, strict=True))
        if not np.isfinite(scores).all():
            raise InputError(
                "the corpus holds a vector that is not finite, or so long that its inner product with a query may overflow "
                "float32; encode it again with dtype float32, or divide vectors or queries by some number"
            )
        return scores, indices

    def _blocks(self, rows: NamedSharding) -> Iterator[tuple[Any, Any, Any, np.int32]]:
        """(codes, scale, valid, first row) of each block, on the devices, padded to one shape."""
        if self._placed:
            yield from self._placed
            return
        size = _block_rows(len(self), self.dim, rows.mesh.size) * rows.mesh.size
        placed = []
        itemsize = jnp.dtype(self.codes.dtype).itemsize
        keep = len(self) * self.dim * itemsize < 0.7 * _free_bytes(rows)
        for start in range(0, len(self), size):
            stop = min(start + size, len(self))
            valid = np.zeros(size, bool)
            valid[: stop - start] = True if self.valid is None else self.valid[start:stop]
            codes, scale = masked(self.codes[start:stop], valid[: stop - start]), None
            if not codes.dtype.isnative or codes.dtype.itemsize > 4:
                codes = as_float32(codes)
            if self.scale is not None:
                scale = jax.device_put(_padded(self.scale[start:stop], size), rows)
            block = (
                jax.device_put(_padded(codes, size), rows),
                scale,
                jax.device_put(valid, rows),
                np.int32(start),
            )
            if keep:
                placed.append(block)
            yield block
        self._placed.extend(placed)

    def _rescore(self, queries: np.ndarray, found: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores, indices = np.empty((len(found), k), np.float32), np.empty((len(found), k), np.int32)
        found = np.sort(found, axis=1)
        for start in range(0, len(found), _RESCORED):
            part = slice(start, start + _RESCORED)
            candidates = np.asarray(self.vectors[found[part].ravel()], np.float32)
            if self.metric == "cosine" and not self.unit:
                candidates = unit_rows(candidates)
            candidates = candidates.reshape(*found[part].shape, self.dim)
            exact = np.matmul(candidates, queries[part, :, None])[..., 0]
            order = np.argsort(-exact, axis=1, kind="stable")[:, :k]
            scores[part] = np.take_along_axis(exact, order, axis=1)
            indices[part] = np.take_along_axis(found[part], order, axis=1)
        return scores, indices


_corrections = jax.jit(corrections, static_argnames="cosine")


@jax.jit
def _widened(codes: Any) -> Any:
    return codes.astype(jnp.float32)


def top_k(
    queries: Float[Array | np.ndarray, "q dim"],
    vectors: Rows,
    k: int,
    *,
    metric: str = "cosine",
    dtype: str = "float32",
) -> tuple[Float[np.ndarray, "q m"], Int[np.ndarray, "q m"]]:
    """The k nearest of all `vectors` for each query, over every local device, in bounded memory.

    Args:
        queries: float [q, dim].
        vectors: float [n, dim]: a NumPy or JAX array, or a memory map of any size.
        k: how many, at least 1.
        metric: "cosine" (a zero vector has cosine 0 with everything), or "dot" for the inner product.
        dtype: "float32", which is exact, or "bfloat16" or "int8" to scan fewer bytes and score in float32 what that
            finds; see `Corpus.of`.

    Returns:
        Scores float32 [q, m], descending, and row numbers int32 [q, m], m = min(k, n); equal scores in the order of
        their rows.

    Raises:
        InputError: shapes that do not fit, k < 1, or values that are not finite or overflow float32.

    Example:
        >>> documents = np.array([[1, 0], [0, 1], [2, 0]], np.float32)
        >>> scores, rows = top_k(np.array([[1, 0]], np.float32), documents, k=2)
        >>> rows.tolist(), scores.tolist()
        ([[0, 2]], [[1.0, 1.0]])
    """
    return Corpus.of(vectors, metric=metric, dtype=dtype).top_k(queries, k)


def _block_rows(n: int, dim: int, devices: int) -> int:
    """Rows that a device takes at a time: of few sizes, so that few shapes occur, and little more than there are."""
    backend = jax.default_backend()
    most = BLOCK_BYTES.get(backend, 256 * 2**20) // (4 * dim)
    most = max(64, min(most, _SCORED_ROWS.get(backend, most)) // devices)
    most = 1 << (most.bit_length() - 1)
    each = -(-n // (devices * -(-n // (devices * most))))
    step = max(64, most // 8)
    return -(-each // step) * step if each > step else 1 << max(6, (each - 1).bit_length())


def _query_parts(queries: np.ndarray) -> Iterator[np.ndarray]:
    most = QUERIES.get(jax.default_backend(), 1_024)
    for start in range(0, len(queries), most):
        part = queries[start : start + most]
        # Few sizes, few programs.
        yield _padded(part, next(size for size in (1, 8, 32, 128, most) if size >= len(part)))


def _padded(rows: Any, size: int) -> Any:
    short = size - len(rows)
    if not short:
        return rows
    pad = jnp.pad if isinstance(rows, jax.Array) else np.pad
    return pad(rows, [(0, short)] + [(0, 0)] * (rows.ndim - 1))


def _free_bytes(rows: NamedSharding) -> int:
    """Memory for resident blocks; none on a CPU, where the array that they came from is as near."""
    if jax.default_backend() == "cpu":
        return 0
    stats = [device.memory_stats() or {} for device in rows.mesh.devices.flat]
    return sum(s.get("bytes_limit", 0) - s.get("bytes_in_use", 0) for s in stats)
