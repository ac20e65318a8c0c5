"""SentenceEncoder joins the stations of the road: text in, sentence vectors out."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float
from tqdm import tqdm

from jaxvec.errors import InputError
from jaxvec.forward import Apply, make_apply
from jaxvec.interchange.sentence_transformers import read_modules
from jaxvec.models.checkpoint import Params, cast_params, load_checkpoint
from jaxvec.models.config import EncoderConfig
from jaxvec.models.sources import BUNDLED, find_model
from jaxvec.packing import Packing, pack
from jaxvec.pooling import POOLINGS, normalize, resolve_layers
from jaxvec.tokens import Tokenizer

CHUNK = 16_384  # sentences tokenised and packed together; packing never crosses a chunk
_IN_FLIGHT = 4  # batches sent ahead of the one whose result is awaited
_TOKENS_PER_DEVICE = {"cpu": 2_048}  # elsewhere 32,768


@dataclass(frozen=True, kw_only=True, eq=False)
class SentenceEncoder:
    """A loaded encoder with its tokenizer and pooling. Make one with `SentenceEncoder.load`.

    >>> encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
    >>> vectors = encoder.encode(["A man plays a guitar.", "Someone plays an instrument.", "It is raining."])
    >>> vectors.shape
    (3, 384)
    >>> bool(encoder.similarity(vectors[0], vectors[1]) > encoder.similarity(vectors[0], vectors[2]))
    True
    """

    name: str
    folder: Path
    config: EncoderConfig
    tokenizer: Tokenizer = field(repr=False)
    params: Params = field(repr=False)
    pooling: str
    layers: tuple[int, ...]
    dtype: str
    normalizes: bool

    @classmethod
    def load(
        cls,
        name: str | os.PathLike[str] = BUNDLED,
        *,
        pooling: str | None = None,
        layers: str | int | Sequence[int] = "last",
        dtype: str = "float32",
        max_length: int | None = None,
    ) -> "SentenceEncoder":
        """Loads an encoder.

        Args:
            name: a model folder, a Hugging Face id, or "all-MiniLM-L6-v2", which is bundled.
            pooling: "cls", "mean", "max" or "pooler" (BERT's tanh layer over the first token); None takes the
                folder's own (a sentence-transformers folder has one), else "mean".
            layers: "last", "last_two", "first_last", "embedding_last", or hidden-state numbers (0 is the
                embedding output, 1 the first block, −1 the last), which are averaged before pooling.
            dtype: what the large products are computed in: "float32", "bfloat16", or "auto": bfloat16 where the
                hardware multiplies it natively. Parameters that only add stay float32, and vectors leave as float32.
            max_length: tokens of a sentence, special ones included; None takes the sentence-transformers file's,
                else what the position table allows. Longer sentences are cut, with one warning.

        Raises:
            InputError: anything about the model or the arguments that does not fit; the message says what.
        """
        folder = find_model(name)
        modules = read_modules(folder)
        if modules.dense:
            raise InputError(f"{folder}: its modules.json has a Dense module, which this version does not read")
        if dtype not in ("float32", "bfloat16", "auto"):
            raise InputError(f"dtype is {dtype!r}; expected 'float32', 'bfloat16' or 'auto'")
        if pooling is not None and pooling not in POOLINGS:
            raise InputError(f"pooling is {pooling!r}; expected one of {', '.join(POOLINGS)}")
        config, params = load_checkpoint(modules.encoder)
        own_pooling, own_layers = modules.pooling or "mean", (config.num_layers,)
        chosen, numbers = pooling or own_pooling, resolve_layers(layers, config.num_layers)
        if chosen == "pooler" and not config.has_pooler:
            raise InputError(f"{folder}: pooling 'pooler' needs the pooler's weights, which this checkpoint lacks")
        limit = config.max_length
        if max_length is not None and not 0 < max_length <= limit:
            raise InputError(f"max_length is {max_length}; this model's position table allows 1 to {limit}")
        tokenizer = Tokenizer(modules.encoder, max_length or min(modules.max_length or limit, limit), modules.lower_case)
        if tokenizer.vocab_size > config.vocab_size:
            raise InputError(
                f"{folder}: the tokenizer knows {tokenizer.vocab_size} tokens but the embedding table has "
                f"{config.vocab_size} rows; tokenizer and weights are not of the same model"
            )
        compute = _auto_dtype() if dtype == "auto" else dtype
        return cls(
            name=os.fspath(name),
            folder=folder,
            config=config,
            tokenizer=tokenizer,
            params={"encoder": cast_params(params, jnp.dtype(compute))},
            pooling=chosen,
            layers=numbers,
            dtype=compute,
            normalizes=modules.normalize and chosen == modules.pooling and numbers == own_layers,
        )

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.config.hidden_size

    @property
    def max_length(self) -> int:
        """Tokens that a sentence keeps, special ones included."""
        return self.tokenizer.max_length

    def describe(self) -> dict[str, Any]:
        """Where the vectors come from, as plain values for a report."""
        return {
            "model": self.name,
            "pooling": self.pooling,
            "layers": list(self.layers),
            "dtype": self.dtype,
            "max_length": self.max_length,
        }

    def function(self, normalize: bool | None = None) -> tuple[Apply, Params]:
        """The same computation for other JAX code.

        Returns:
            (apply, params): `apply(params, batch)` maps a `PackedBatch` to float32 [rows · slots, dim], row-major,
            zero where a slot is empty. It is pure and holds no sharding, so that it works inside `jit`, `grad`,
            `vmap`, `shard_map` and `pmap`. `params` is a nested dict of uncommitted floating arrays.

        >>> encoder = SentenceEncoder.load()
        >>> apply, params = encoder.function()
        >>> packing = encoder.pack(["one sentence", "and another"])
        >>> jax.jit(apply)(params, packing.batches[0]).shape
        (2, 384)
        """
        return self._apply(self.normalizes if normalize is None else normalize), self.params

    def pack(self, sentences: Sequence[str], batch_tokens: int | None = None) -> Packing:
        """Tokenises and packs: the batches that `function()` takes, and where each vector belongs."""
        return self._prepare(_as_list(sentences), 0, self._batch_tokens(batch_tokens))[0]

    def encode(
        self,
        sentences: Sequence[str],
        *,
        normalize: bool | None = None,
        batch_tokens: int | None = None,
        show_progress: bool = False,
    ) -> Float[np.ndarray, "n dim"]:
        """Vectors of a list of sentences, in its order.

        Args:
            sentences: the texts; an empty list gives [0, dim], a blank one the vector of the empty sentence.
            normalize: True or False; None follows the folder (its Normalize module, with its own pooling and layers).
            batch_tokens: tokens computed at a time; None suits the hardware.
            show_progress: a progress bar on stderr.

        Returns:
            float32 [len(sentences), dim].

        Raises:
            InputError: an entry is not text; its row is named.
        """
        texts = _as_list(sentences)
        vectors = np.empty((len(texts), self.dim), np.float32)
        row = 0
        with tqdm(total=len(texts), unit=" sentences", disable=not show_progress) as bar:
            for chunk, part in self.stream(texts, normalize=normalize, batch_tokens=batch_tokens, tick=bar.update):
                vectors[row : row + len(chunk)] = part
                row += len(chunk)
        return vectors

    def stream(
        self,
        sentences: Iterable[str],
        *,
        normalize: bool | None = None,
        batch_tokens: int | None = None,
        tick: Callable[[int], Any] = lambda count: None,
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        """Encodes any number of sentences in constant memory: yields (sentences, vectors) a chunk at a time, in order.

        Tokenising, packing and transfer of later chunks go on while the device computes. `tick` is called with the
        number of sentences whenever a batch has been computed.
        """
        waiting: tuple[list[str], list[tuple[Array, np.ndarray]]] | None = None
        for chunk in self.dispatch(sentences, normalize=normalize, batch_tokens=batch_tokens, tick=tick):
            if waiting is not None:
                yield waiting[0], self._collect(*waiting)
            waiting = chunk
        if waiting is not None:
            yield waiting[0], self._collect(*waiting)

    def dispatch(
        self,
        sentences: Iterable[str],
        *,
        normalize: bool | None = None,
        batch_tokens: int | None = None,
        tick: Callable[[int], Any] = lambda count: None,
    ) -> Iterator[tuple[list[str], list[tuple[Array, np.ndarray]]]]:
        """Like `stream`, but leaves the vectors on the device, as they came from it.

        Yields:
            (sentences, batches): each batch is (float32 device array [rows · slots, dim], index [rows · slots] of
            the sentence within the chunk, −1 for an empty slot).
        """
        tokens = self._batch_tokens(batch_tokens)
        run = self._compiled(self.normalizes if normalize is None else normalize)
        texts, row, truncated = iter(sentences), 0, 0

        def prepare(first_row: int) -> tuple[list[str], Packing, int]:
            chunk = list(islice(texts, CHUNK))
            return chunk, *self._prepare(chunk, first_row, tokens)

        with ThreadPoolExecutor(1, "jaxvec-tokens") as worker:
            following = worker.submit(prepare, row)
            while (prepared := following.result())[0]:
                chunk, packing, cut = prepared
                row, truncated = row + len(chunk), truncated + cut
                following = worker.submit(prepare, row)
                done: list[tuple[Array, np.ndarray]] = []
                for batch, index in zip(packing.batches, packing.indices, strict=True):
                    done.append((run(self._placed, jax.device_put(batch, self._rows)), index))
                    if len(done) > _IN_FLIGHT:
                        _await(done[-1 - _IN_FLIGHT], tick)
                for late in done[-_IN_FLIGHT:]:
                    _await(late, tick)
                yield chunk, done
        if truncated:
            warnings.warn(
                f"{truncated} of {row} sentences were cut to {self.max_length} tokens (max_length)", stacklevel=2
            )

    def similarity(
        self, a: Float[Array | np.ndarray, "*n dim"], b: Float[Array | np.ndarray, "*m dim"]
    ) -> Float[np.ndarray, "..."]:
        """Cosine of every vector of `a` with every vector of `b`; a zero vector has cosine 0 with everything.

        Args:
            a: [n, dim] or [dim].
            b: [m, dim] or [dim].

        Returns:
            float32 [n, m], without the axis of an argument that was a single vector.
        """
        product = jnp.matmul(_unit(a), _unit(b).T, precision=jax.lax.Precision.HIGHEST)
        return np.asarray(product)

    def _prepare(self, chunk: list[str], first_row: int, tokens: int) -> tuple[Packing, int]:
        ids = self.tokenizer(chunk, first_row)
        return pack(ids, tokens, self._rows.mesh.size), ids.truncated

    def _collect(self, chunk: list[str], batches: list[tuple[Array, np.ndarray]]) -> np.ndarray:
        vectors = np.empty((len(chunk), self.dim), np.float32)
        for result, index in batches:
            filled = index >= 0
            vectors[index[filled]] = np.asarray(result)[filled]
        return vectors

    def _batch_tokens(self, asked: int | None) -> int:
        if asked is None:
            return _TOKENS_PER_DEVICE.get(jax.default_backend(), 32_768) * self._rows.mesh.size
        if not isinstance(asked, int) or asked < 1:
            raise InputError(f"batch_tokens is {asked!r}; expected a positive number of tokens")
        return asked

    @cached_property
    def _rows(self) -> NamedSharding:
        return NamedSharding(Mesh(np.array(jax.local_devices()), ("rows",)), PartitionSpec("rows"))

    @cached_property
    def _placed(self) -> Params:
        return jax.device_put(self.params, NamedSharding(self._rows.mesh, PartitionSpec()))

    @cached_property
    def _apply(self) -> Callable[[bool], Apply]:
        return cache(
            lambda normalizes: make_apply(
                self.config, self.pooling, self.layers, jnp.dtype(self.dtype), normalizes=normalizes
            )
        )

    @cached_property
    def _compiled(self) -> Callable[[bool], Apply]:
        return cache(lambda normalizes: jax.jit(self._apply(normalizes)))


def _await(batch: tuple[Array, np.ndarray], tick: Callable[[int], Any]) -> None:
    batch[0].block_until_ready()
    tick(int((batch[1] >= 0).sum()))


def _as_list(sentences: Sequence[str]) -> list[str]:
    if isinstance(sentences, (str, bytes)):
        raise InputError("sentences is a single text; expected a list of them: [text]")
    return list(sentences)


def _unit(vectors: Any) -> Array:
    return normalize(jnp.asarray(vectors, jnp.float32))


def _auto_dtype() -> str:
    """bfloat16 on accelerators and on CPUs with bfloat16 matrix units; float32 elsewhere."""
    if jax.default_backend() != "cpu":
        return "bfloat16"
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "float32"
    return "bfloat16" if "amx_bf16" in flags or "avx512_bf16" in flags else "float32"
