"""For clusters with a scheduler of their own: functions that Ray Data and Spark call on batches of rows."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np

from jaxvec.errors import InputError


class EncodeBatches:
    """Ray Data's `map_batches`: adds to a batch, a dict of columns, the vectors of its texts.

    Ray makes one object in every worker, which loads the model once and keeps its compiled programs. Give batches of some
    thousand rows, so that a device is busy; a worker with one GPU encodes on that.

        vectors = ray.data.read_parquet("corpus/").map_batches(
            EncodeBatches, fn_constructor_args=("all-MiniLM-L6-v2", "text"), batch_size=8192, num_gpus=1, concurrency=8)

    Args:
        model: as for `SentenceEncoder.load`; a folder that every worker sees.
        column: the column of texts.
        options: further arguments of `SentenceEncoder.load`.

    Example:
        >>> encode = EncodeBatches("all-MiniLM-L6-v2", "text")
        >>> encode({"text": np.array(["A dog barks.", "It rains."]), "id": np.array([1, 2])})["vector"].shape
        (2, 384)
    """

    def __init__(self, model: str, column: str, **options: Any):
        self.encoder, self.column = _encoder(model, **_hashable(options)), column

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The batch with a further column `vector`, float32 [rows, dim]."""
        _check_column(self.column, list(batch))
        return {**batch, "vector": self.encoder.encode(batch[self.column].tolist())}


def encode_arrow(model: str, column: str, **options: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Spark's `mapInArrow`: record batches with a column of texts → the same with a column `vector` (list of float32).

        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 8192)
        vectors = frame.mapInArrow(encode_arrow("all-MiniLM-L6-v2", "text"), "text string, vector array<float>")

    The model is loaded once in every Python worker (keep them: `spark.python.worker.reuse`, on by default).

    Args:
        model: as for `SentenceEncoder.load`; a folder that every worker sees.
        column: the column of texts.
        options: further arguments of `SentenceEncoder.load`.

    Example:
        >>> import pyarrow as pa
        >>> batch = pa.record_batch({"text": ["A dog barks.", "It rains."]})
        >>> [encoded] = encode_arrow("all-MiniLM-L6-v2", "text")([batch])
        >>> encoded.schema.names, len(encoded["vector"][0])
        (['text', 'vector'], 384)
    """

    def encode(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        encoder = _encoder(model, **_hashable(options))
        for batch in batches:
            _check_column(column, batch.schema.names)
            vectors = encoder.encode(batch.column(column).to_pylist())
            starts = np.arange(len(vectors) + 1, dtype=np.int32) * encoder.dim
            lists = pa.ListArray.from_arrays(pa.array(starts), pa.array(vectors.ravel()))
            yield pa.record_batch([*batch.columns, lists], names=[*batch.schema.names, "vector"])

    return encode


def _check_column(column: str, found: list[str]) -> None:
    if column not in found or "vector" in found:
        problem = "a column 'vector' already" if "vector" in found else f"no column {column!r}"
        raise InputError(f"the batch has {problem}; found: {', '.join(map(repr, found))}")


def _hashable(options: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


@cache
def _encoder(model: str, **options: Any) -> Any:
    from jaxvec.encoder import SentenceEncoder

    return SentenceEncoder.load(model, **options)
