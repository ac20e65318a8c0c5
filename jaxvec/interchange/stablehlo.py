"""A whole encoder as one StableHLO file: token ids in, sentence vectors out, wherever JAX runs."""

import os
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jaxtyping import Array, Float, Int

from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.packing import PackedBatch
from jaxvec.vectorfiles import atomic_write_bytes

PLATFORMS = ("cpu", "cuda", "tpu")
_LARGEST = (1 << 31) - (1 << 24)  # flatbuffers ends at 2 GiB; the rest is for the program itself


def export_stablehlo(
    encoder: SentenceEncoder,
    path: str | os.PathLike[str],
    normalize: bool | None = None,
    platforms: Sequence[str] = PLATFORMS,
) -> None:
    """Writes encoder, pooling and calibration, weights included, as one program that needs neither jaxvec nor flax.

    The program maps `token_ids` and `attention_mask`, int32 [batch, length] (1 at a token, 0 at padding, on
    either side), to float32 [batch, dim]. Any batch and any length up to `encoder.max_length` will do, each new
    pair compiled once; a greater length is a ValueError. A row without tokens gives zeros, one with an id outside
    the vocabulary NaN. The tokenizer is not in the file: use the model's own, special tokens included.

    Where `jax` and `flatbuffers` are installed, three lines read it::

        from jax import export
        program = export.deserialize(bytearray(open("model.stablehlo", "rb").read()))
        vectors = program.call(token_ids, attention_mask)

    The weights are stored in the encoder's compute dtype: a "bfloat16" encoder gives half the file. JAX reads
    the files of its releases of the last six months and, for three weeks, of newer ones.

    Args:
        encoder: with or without a calibration.
        path: the file to write; it appears whole or not at all.
        normalize: as for `encoder.encode`.
        platforms: where the program shall run: "cpu", "cuda", "tpu", "rocm".

    Raises:
        InputError: an unknown platform, weights of 2 GiB or more, or a path that cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.stablehlo"
        >>> export_stablehlo(SentenceEncoder.load(), path)
        >>> program = export.deserialize(bytearray(path.read_bytes()))
        >>> token_ids = np.array([[101, 7592, 102, 0], [101, 7592, 2088, 102]], np.int32)
        >>> program.call(token_ids, np.minimum(token_ids, 1)).shape, program.platforms
        ((2, 384), ('cpu', 'cuda', 'tpu'))

    References: https://docs.jax.dev/en/latest/export/export.html
    """
    known = (*PLATFORMS, "rocm")
    if isinstance(platforms, str) or not platforms or set(platforms) - set(known):
        raise InputError(f"platforms is {platforms!r}; expected some of {', '.join(known)}")
    apply, params = encoder.function(normalize)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    if size > _LARGEST:
        raise InputError(
            f"the weights take {size / 2**30:.2f} GiB and a StableHLO file holds less than 2; "
            "load the encoder with dtype='bfloat16', which halves them"
        )
    try:
        import flatbuffers  # noqa: F401  jax imports it only when the work is done
    except ImportError as error:
        raise InputError(f"{path}: StableHLO files need flatbuffers; pip install flatbuffers") from error
    vocabulary = encoder.config.vocab_size

    def embed(
        token_ids: Int[Array, "batch length"], attention_mask: Int[Array, "batch length"]
    ) -> Float[Array, "batch dim"]:
        foreign = (attention_mask > 0) & ((token_ids < 0) | (token_ids >= vocabulary))
        vectors = apply(params, PackedBatch.dense(token_ids, attention_mask))
        # A program cannot raise, and a table lookup would silently take the nearest row.
        return jnp.where(foreign.any(axis=1, keepdims=True), jnp.nan, vectors)

    shape = export.symbolic_shape("batch, length", constraints=[f"length <= {encoder.max_length}"])
    ids = jax.ShapeDtypeStruct(shape, np.int32)
    program = export.export(jax.jit(embed), platforms=tuple(platforms))(ids, ids)
    atomic_write_bytes(path, bytes(program.serialize()))
