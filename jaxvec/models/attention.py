"""Attention kernels: what softmax(q kᵀ + bias) v is computed by. All give the same vectors.

"xla" is plain XLA: every platform, transformation and export. "cudnn" is cuDNN's fused kernel on NVIDIA GPUs, for bfloat16.
"flash" is the Pallas flash attention of JAX for TPUs, which never holds the [l, l] scores: for rows of 512 tokens and more.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxvec.errors import InputError

KERNELS = {"xla": ("cpu", "gpu", "tpu"), "cudnn": ("gpu",), "flash": ("tpu",)}
_FLASH_FROM, _FLASH_BLOCK = 512, 128

Attend = Callable[[Array, Array, Array], Array]


def check_kernel(name: str) -> str:
    """`name`, if it is "auto" or a kernel that this machine has."""
    backend = jax.default_backend()
    if not isinstance(name, str) or (name != "auto" and backend not in KERNELS.get(name, ())):
        here = [kernel for kernel, platforms in KERNELS.items() if backend in platforms]
        raise InputError(
            f"attention is {name!r}; on this machine ({backend}) there are auto, {', '.join(here)}"
        )
    return name


def make_attend(
    kernel: str,
    sentence_ids: Int[Array, "r l"],
    position_bias: Float[Array, "1 #n #l #l"],
    dtype: Any,
) -> Attend:
    """Attention in which a token sees its own sentence: (query, key, value) [r n l h] → [r n l h].

    Args:
        kernel: "xla", "cudnn", "flash", or "auto": cuDNN for bfloat16 on a GPU, flash for long rows on a TPU, else XLA.
        sentence_ids: int [r, l]; tokens with equal numbers see each other.
        position_bias: added to the scores; [1, 1, 1, 1] if there is none.
        dtype: of query, key and value; the query is scaled already.
    """
    length = sentence_ids.shape[1]
    long = isinstance(length, int) and length >= _FLASH_FROM and length % _FLASH_BLOCK == 0
    if kernel == "auto":
        fused = {"gpu": "cudnn" if dtype == jnp.bfloat16 else "xla", "tpu": "flash" if long else "xla"}
        kernel = fused.get(jax.default_backend(), "xla")
    if kernel == "flash" and isinstance(length, int) and length % _FLASH_BLOCK == 0:
        return _flash(sentence_ids, position_bias)
    # Padding sees padding: every softmax row then has a finite entry, so nothing is ever divided by zero.
    same = sentence_ids[:, None, :, None] == sentence_ids[:, None, None, :]
    bias = _mask_bias(same) + position_bias
    return _cudnn(bias) if kernel == "cudnn" else _xla(bias)


def product(equation: str, x: Array, y: Array) -> Array:
    """A product accumulated in float32, and computed in full float32 where its operands are float32.

    Accelerators round float32 operands to TF32 or bfloat16 unless told not to, and on a CPU naming the
    float32 result is what lets bfloat16 operands reach the matrix units.
    """
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    return jnp.einsum(equation, x, y, precision=precision, preferred_element_type=jnp.float32)


def _xla(bias: Array) -> Attend:
    def attend(query: Array, key: Array, value: Array) -> Array:
        weights = jax.nn.softmax(product("rnlh,rnmh->rnlm", query, key) + bias, axis=-1)
        return product("rnlm,rnmh->rnlh", weights.astype(value.dtype), value).astype(value.dtype)

    return attend


def _cudnn(bias: Array) -> Attend:
    def attend(query: Array, key: Array, value: Array) -> Array:
        tokens_first = (x.transpose(0, 2, 1, 3) for x in (query, key, value))
        mixed = jax.nn.dot_product_attention(
            *tokens_first, bias=bias.astype(query.dtype), scale=1.0, implementation="cudnn"
        )
        return mixed.transpose(0, 2, 1, 3)

    return attend


def _flash(sentence_ids: Array, position_bias: Array) -> Attend:
    from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, flash_attention

    segments = SegmentIds(q=sentence_ids, kv=sentence_ids)
    rows, length = sentence_ids.shape

    def attend(query: Array, key: Array, value: Array) -> Array:
        bias = None
        if position_bias.shape[-1] > 1:
            bias = jnp.broadcast_to(position_bias, (rows, query.shape[1], length, length))
        return flash_attention(query, key, value, ab=bias, segment_ids=segments).astype(value.dtype)

    return attend


def _mask_bias(visible: Bool[Array, "..."]) -> Float[Array, "..."]:
    return jnp.where(visible, 0.0, jnp.finfo(jnp.float32).min / 2)
