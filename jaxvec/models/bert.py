"""The encoder family: BERT, RoBERTa, XLM-RoBERTa, DistilBERT, ELECTRA, ALBERT and MPNet, read top to bottom.

Axes in the einsum letters: r rows, l (query) and m (key) tokens, d hidden width, n heads, h width of a head.
LayerNorm, softmax and every accumulation are float32 whatever the compute dtype; only the operands of the
large products, and what travels between them, take the compute dtype.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxvec.models.attention import Attend, make_attend, product
from jaxvec.models.config import EncoderConfig


@jax.custom_jvp
def gelu(x: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """x Φ(x), by the error function (Hendrycks & Gimpel 2016), as BERT's checkpoints were trained with it.

    JAX's own, by the complementary error function, takes twice as long. The derivative Φ(x) + x φ(x) is stated outright:
    that of JAX's error function fails inside `shard_map` on JAX 0.12.
    """
    return x * _normal_cdf(x)


@gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    density = jnp.exp(-jnp.square(x) / 2) / math.sqrt(2 * math.pi)
    return gelu(x), tangent * (_normal_cdf(x) + x * density)


def _normal_cdf(x: Array) -> Array:
    return 0.5 * (1 + jax.lax.erf(x / math.sqrt(2)))


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_fast": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}

_FARTHEST_BUCKET = 128  # MPNet's and T5's: every distance from here on is in the last bucket


def _fill(shape: tuple[int, ...]) -> nnx.Param:
    # A module is built abstractly and then filled from a checkpoint, so its initial values are never seen.
    return nnx.Param(jnp.zeros(shape, jnp.float32))


class Linear(nnx.Module):
    """y = x W + b with W [in, out]; float32 out."""

    def __init__(self, features_in: int, features_out: int):
        self.kernel = _fill((features_in, features_out))
        self.bias = _fill((features_out,))

    def __call__(self, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        kernel = self.kernel[...].astype(x.dtype)
        # A CPU may add up one term after the other, and round each time at the size of the largest so far. Parts of 256
        # keep float32 sums of 512, 1024, 2048 … near torch's; sums of 384, 768 and their multiples are near it whole,
        # and faster.
        long = x.dtype == jnp.float32 and len(kernel) >= 512 and len(kernel).bit_count() == 1
        parts = len(kernel) // 256 if long else 1
        terms = zip(jnp.split(x, parts, -1), jnp.split(kernel, parts), strict=True)
        return sum(product("...i,io->...o", *term) for term in terms) + self.bias[...]


class LayerNorm(nnx.Module):
    """Layer normalisation with the centred two-pass variance; float32 in and out."""

    def __init__(self, features: int, eps: float):
        self.scale = _fill((features,))
        self.bias = _fill((features,))
        self.eps = eps

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + self.eps) * self.scale[...] + self.bias[...]


class Embeddings(nnx.Module):
    """Token, position and token-type rows, summed and normalised: hidden state 0."""

    def __init__(self, config: EncoderConfig):
        self.token = _fill((config.vocab_size, config.embedding_size))
        self.position = _fill((config.position_rows, config.embedding_size))
        if config.token_types:
            self.token_type = _fill((config.token_types, config.embedding_size))
        self.norm = LayerNorm(config.embedding_size, config.layer_norm_eps)
        if config.projects_embeddings:
            self.projection = Linear(config.embedding_size, config.hidden_size)
        self.config = config

    def __call__(
        self,
        token_ids: Int[Array, "r l"],
        positions: Int[Array, "r l"],
        token_type_ids: Int[Array, "r l"],
        dtype: Any,
    ) -> Float[Array, "r l d"]:
        x = self.token[...][token_ids] + self.position[...][positions + self.config.position_offset]
        if self.config.token_types:
            x = x + self.token_type[...][token_type_ids]
        x = self.norm(x.astype(jnp.float32)).astype(dtype)
        return self.projection(x).astype(dtype) if self.config.projects_embeddings else x


class Attention(nnx.Module):
    """Multi-head self-attention in which a token sees the tokens of its own sentence only."""

    def __init__(self, config: EncoderConfig):
        width = config.hidden_size
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)
        self.output = Linear(width, width)
        self.num_heads = config.num_heads

    def __call__(self, x: Float[Array, "r l d"], attend: Attend) -> Float[Array, "r l d"]:
        rows, length, width = x.shape
        heads = (rows, length, self.num_heads, width // self.num_heads)
        scale = 1 / math.sqrt(heads[-1])
        # Heads before tokens: the products are then batched over leading axes, which the CPU's library needs.
        query = (self.query(x) * scale).astype(x.dtype).reshape(heads).transpose(0, 2, 1, 3)
        key = self.key(x).astype(x.dtype).reshape(heads).transpose(0, 2, 1, 3)
        value = self.value(x).astype(x.dtype).reshape(heads).transpose(0, 2, 1, 3)
        mixed = attend(query, key, value).transpose(0, 2, 1, 3)
        return self.output(mixed.reshape(x.shape))


class Block(nnx.Module):
    """Attention and feed-forward, each added to its input and normalised (post-LayerNorm, as in BERT)."""

    def __init__(self, config: EncoderConfig):
        width, eps = config.hidden_size, config.layer_norm_eps
        self.attention = Attention(config)
        self.attention_norm = LayerNorm(width, eps)
        self.up = Linear(width, config.intermediate_size)
        self.down = Linear(config.intermediate_size, width)
        self.output_norm = LayerNorm(width, eps)
        self.activation = config.activation

    def __call__(self, x: Float[Array, "r l d"], attend: Attend) -> Float[Array, "r l d"]:
        x = self.attention_norm(x + self.attention(x, attend)).astype(x.dtype)
        inner = _ACTIVATIONS[self.activation](self.up(x)).astype(x.dtype)
        return self.output_norm(x + self.down(inner)).astype(x.dtype)


class Encoder(nnx.Module):
    """A whole encoder. Built abstractly (`nnx.eval_shape`), filled by `checkpoint.load_params`."""

    def __init__(self, config: EncoderConfig):
        self.embeddings = Embeddings(config)
        self.blocks = nnx.List([Block(config) for _ in range(config.num_blocks)])
        if config.relative_buckets:
            self.relative_bias = _fill((config.relative_buckets, config.num_heads))
        if config.has_pooler:
            self.pooler = Linear(config.hidden_size, config.hidden_size)
        self.config = config

    def __call__(
        self,
        token_ids: Int[Array, "r l"],
        sentence_ids: Int[Array, "r l"],
        positions: Int[Array, "r l"],
        token_type_ids: Int[Array, "r l"],
        layers: tuple[int, ...],
        dtype: Any = jnp.float32,
        attention: str = "xla",
    ) -> list[Float[Array, "r l d"]]:
        """The hidden states asked for, in the order of `layers`.

        Args:
            token_ids: int [rows, length].
            sentence_ids: int [rows, length]; tokens with equal numbers in a row form one sentence, which must be
                contiguous; 0 is padding.
            positions: int [rows, length]; place of a token within its sentence, from 0.
            token_type_ids: int [rows, length]; ignored by families without token types.
            layers: numbers from 0 (embedding output) to `config.num_layers`; blocks above the highest are not run.
            dtype: compute dtype, float32 or bfloat16.
            attention: the kernel, as for `attention.make_attend`.
        """
        x = self.embeddings(token_ids, positions, token_type_ids, dtype)
        attend = make_attend(attention, sentence_ids, self._position_bias(sentence_ids.shape[1]), dtype)
        states = {0: x}
        for layer in range(max(layers)):
            x = self.blocks[self.config.schedule[layer]](x, attend)
            states[layer + 1] = x
        return [states[layer] for layer in layers]

    def _position_bias(self, length: Any) -> Float[Array, "1 #n l l"]:
        if not self.config.relative_buckets:
            return jnp.zeros((1, 1, 1, 1), jnp.float32)
        # One row for each distance, not an [l, l] table of buckets: in an exported program the length is symbolic.
        far = _FARTHEST_BUCKET
        buckets = _relative_position_bucket(np.arange(-far, far + 1), self.config.relative_buckets, far)
        table = self.relative_bias[...].astype(jnp.float32)[buckets]
        place = jnp.arange(length)
        biases = table[jnp.clip(place[:, None] - place[None, :], -far, far) + far]
        return jnp.moveaxis(biases, -1, 0)[None]


def _relative_position_bucket(
    behind: Int[np.ndarray, "*s"], num_buckets: int, max_distance: int
) -> Int[np.ndarray, "*s"]:
    """T5's bidirectional bucket of query minus key position, as MPNet uses it (Raffel et al. 2020, §2.1).

    Half of the buckets are for keys after the query; within a half, small distances have one each and larger
    ones share logarithmically up to `max_distance`. Evaluated in float32, as the released models were trained.

    >>> _relative_position_bucket(np.array([-2, -1, 0, 1, 2]), 32, 128)
    array([18, 17,  0,  1,  2])
    """
    half = num_buckets // 2
    exact = half // 2
    distance = np.abs(behind)
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    far = exact + (ratio / np.float32(math.log(max_distance / exact)) * np.float32(half - exact)).astype(
        np.int64
    )
    return np.where(behind < 0, half, 0) + np.where(distance < exact, distance, np.minimum(far, half - 1))
