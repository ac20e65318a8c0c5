"""An index for others: FAISS, usearch, and plain .npy and Parquet files for vector databases."""

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from jaxvec.calibration.affine_map import Affine
from jaxvec.errors import InputError
from jaxvec.search.index import Index
from jaxvec.textfiles import import_pyarrow
from jaxvec.vectorfiles import atomic_write_bytes, check_target, new_file, open_writer

FAISS_KINDS = ("flat", "hnsw", "ivf-pq")
TRAINING = 200_000  # vectors that IVF-PQ learns from, at most
LINKS = 32  # of a vector in HNSW


def to_faiss(index: Index, kind: str = "flat", *, raw_queries: bool = False) -> Any:
    """A FAISS index of the same documents; the ids it returns are their numbers.

    Args:
        index: an opened index; removed documents are left out.
        kind: "flat" is exact and gives what `Index.top_k` gives, equal scores in any order; "hnsw" and "ivf-pq" are approximate.
        raw_queries: the calibration, and for cosine the division by the length, become FAISS transforms in front:
            queries are then vectors of the encoder without its calibration. False takes calibrated queries, and for
            cosine of unit length.

    Raises:
        InputError: FAISS is not installed, another kind, too few documents for IVF-PQ (256), or `raw_queries` with a
            calibration that is not linear, or without one.

    Example:
        >>> import tempfile
        >>> from jaxvec.encoder import SentenceEncoder
        >>> encoder = SentenceEncoder.load()
        >>> index = Index.build(tempfile.mkdtemp(), encoder, ["A dog barks.", "It rains.", "Stocks fell."])
        >>> to_faiss(index).search(encoder.encode(["bad weather"], normalize=True), 1)[1].tolist()
        [[1]]
    """
    if kind not in FAISS_KINDS:
        raise InputError(f"kind is {kind!r}; expected one of {', '.join(FAISS_KINDS)}")
    faiss = _import("faiss", "faiss")
    dim, count = index.dim, len(index)
    if kind == "flat":
        made = faiss.IndexFlatIP(dim)
    elif kind == "hnsw":
        made = faiss.IndexHNSWFlat(dim, LINKS, faiss.METRIC_INNER_PRODUCT)
        made.hnsw.efConstruction = 200
    else:
        if count < 256:
            raise InputError(f"IVF-PQ learns from at least 256 documents, the index holds {count}; take flat")
        # FAISS advises 39 or more vectors for each list; a code of one byte stands for 4 coordinates.
        lists = max(1, min(round(4 * count**0.5), count // 39))
        pieces = next(p for p in range(max(1, dim // 4), 0, -1) if dim % p == 0)
        made = faiss.index_factory(dim, f"IVF{lists},PQ{pieces}", faiss.METRIC_INNER_PRODUCT)
        kept = np.flatnonzero(index.valid)
        some = np.random.default_rng(0).choice(len(kept), min(len(kept), TRAINING), replace=False)
        made.train(index.vectors[kept[np.sort(some)]])
    with_ids = faiss.IndexIDMap2(made)
    for numbers, vectors in index.blocks():
        with_ids.add_with_ids(np.ascontiguousarray(vectors), numbers)
    if not raw_queries:
        return with_ids
    return _with_transforms(faiss, with_ids, index)


def to_usearch(index: Index) -> Any:
    """A usearch index (HNSW) of the same documents; its keys are their numbers.

    Queries are calibrated vectors, as `index.encoder.encode(texts, normalize=False)` gives them.

    Raises:
        InputError: usearch is not installed.
    """
    usearch = _import("usearch.index", "usearch")
    metric = "cos" if index.meta["metric"] == "cosine" else "ip"
    made = usearch.Index(ndim=index.dim, metric=metric, dtype="f32")
    for numbers, vectors in index.blocks():
        made.add(numbers, vectors)
    return made


def write_documents(index: Index, path: str | os.PathLike[str]) -> None:
    """Writes the documents to a file that other programs load.

    A `.npy` file holds float32 [n, dim], row i being the i-th document that was not removed. A `.parquet` file has the
    columns `id` (int64), `text` (string) and `vector` (list of float32): what pgvector's `COPY` and Qdrant's
    `upsert` take row by row; the metric, the width and the model are in the schema's metadata.

    Raises:
        InputError: another kind of name, or the file cannot be written.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        with open_writer(path, index.dim) as writer:
            for numbers, vectors in index.blocks():
                writer.write(vectors, [""] * len(numbers))
    elif suffix == ".parquet":
        _write_parquet(index, path)
    else:
        raise InputError(f"{path}: expected a name ending in .npy or .parquet")


def write_faiss(
    index: Index, path: str | os.PathLike[str], kind: str = "flat", *, raw_queries: bool = False
) -> None:
    """Writes what `to_faiss` gives, for `faiss.read_index`."""
    check_target(path)
    made = to_faiss(index, kind, raw_queries=raw_queries)
    atomic_write_bytes(path, _import("faiss", "faiss").serialize_index(made).tobytes())


def write_usearch(index: Index, path: str | os.PathLike[str]) -> None:
    """Writes what `to_usearch` gives, for `usearch.index.Index.restore`."""
    check_target(path)
    atomic_write_bytes(path, bytes(to_usearch(index).save()))


def _with_transforms(faiss: Any, with_ids: Any, index: Index) -> Any:
    from jaxvec.interchange.affine_arrays import to_faiss as to_transform

    calibration = index.encoder.calibration
    if not isinstance(calibration, Affine):
        reason = "has no calibration" if calibration is None else "has a calibration that is not linear"
        raise InputError(
            f"{index.folder} {reason}, so there is no FAISS transform of it; give raw_queries=False (leave --raw-queries out)"
        )
    # Made of a full index: its documents are calibrated already, only queries pass the transforms.
    transformed = faiss.IndexPreTransform(with_ids)
    # The last to be prepended is the first to be applied.
    if index.meta["metric"] == "cosine":
        transformed.prepend_transform(faiss.NormalizationTransform(index.dim))
    transformed.prepend_transform(to_transform(calibration))
    return transformed


def _write_parquet(index: Index, path: Path) -> None:
    pa = import_pyarrow(str(path))
    fields = {"id": pa.int64(), "text": pa.string(), "vector": pa.list_(pa.float32(), index.dim)}
    facts = {"metric": index.meta["metric"], "dim": str(index.dim), "model": index.meta["encoder"]["model"]}
    schema = pa.schema(fields, metadata=facts)
    check_target(path)
    with new_file(path) as file, pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for numbers, vectors in index.blocks():
            flat = pa.array(vectors.ravel())
            columns = [
                pa.array(numbers),
                pa.array([index.text(number) for number in numbers.tolist()], pa.string()),
                pa.FixedSizeListArray.from_arrays(flat, index.dim),
            ]
            writer.write_table(pa.table(columns, schema))


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"{extra} is not installed: pip install 'jaxvec[{extra}]'") from error
