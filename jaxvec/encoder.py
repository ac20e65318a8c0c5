"""SentenceEncoder joins the stations of the road: text in, sentence vectors out."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Shaped
from tqdm import tqdm

from jaxvec.calibration.calibration import Calibration, accepted, device_arrays, rebuild
from jaxvec.calibration.chain import compose
from jaxvec.calibration.device_moments import DeviceMoments
from jaxvec.calibration.moments import Moments
from jaxvec.errors import InputError
from jaxvec.forward import Apply, make_apply
from jaxvec.loading import load_model, model_fingerprint, multiplies_bfloat16, save_calibrated
from jaxvec.models.attention import check_kernel
from jaxvec.models.config import EncoderConfig
from jaxvec.models.sources import BUNDLED
from jaxvec.packing import Packing
from jaxvec.pipeline import Pipeline, Weights, local_rows, refuse_single_text, replicate, use_every_core
from jaxvec.pooling import resolve_layers
from jaxvec.similarity import cosines
from jaxvec.tokens import Tokenizer

Sentences = Iterable[Any]  # of str; what is not is refused by row, not by type


def _silent(count: int) -> None:
    pass


@dataclass(frozen=True, kw_only=True, eq=False)
class SentenceEncoder:
    """A loaded encoder with its tokenizer, pooling and, if any, calibration. Made by `SentenceEncoder.load`.

    >>> encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
    >>> vectors = encoder.encode(["A man plays a guitar.", "Someone plays an instrument.", "It is raining."])
    >>> vectors.shape
    (3, 384)
    >>> bool(encoder.similarity(vectors[0], vectors[1]) > encoder.similarity(vectors[0], vectors[2]))
    True
    """

    name: str
    source: str = field(repr=False)
    folder: Path
    config: EncoderConfig = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    weights: Weights = field(repr=False)
    token_weights: Any = field(repr=False)
    pooling: str
    layers: tuple[int, ...]
    dtype: str
    calibration: Calibration | None = field(repr=False)
    normalizes: bool
    provenance: dict[str, Any] | None = None
    attention: str = field(default="auto", repr=False)

    @classmethod
    def load(
        cls,
        name: str | os.PathLike[str] = BUNDLED,
        *,
        pooling: str | None = None,
        layers: str | int | Sequence[int] | None = None,
        dtype: str = "float32",
        max_length: int | None = None,
        token_weights: Float[Array | np.ndarray, " vocab"] | None = None,
        attention: str = "auto",
    ) -> "SentenceEncoder":
        """Loads an encoder. If this is JAX's first use in the process, a CPU becomes one JAX device a core.

        Args:
            name: a model folder, a folder written by `save`, a Hugging Face id, or "all-MiniLM-L6-v2", which is
                bundled.
            pooling: "cls", "mean", "max", "pooler" (BERT's tanh layer over the first token) or "sif"; None takes the
                folder's own (a sentence-transformers folder has one), else "mean".
            layers: "last", "last_two", "first_last", "embedding_last", or hidden-state numbers (0 is the
                embedding output, 1 the first block, −1 the last), which are averaged before pooling; None
                takes the folder's own (a folder written by `save` has some), else "last".
            dtype: what the large products are computed in: "float32", "bfloat16", or "auto": bfloat16 on GPUs, TPUs and
                the CPUs that multiply it faster (Intel's with AMX, AMD's with avx512_bf16), else float32. Parameters
                that only add stay float32, and vectors leave as float32.
            max_length: tokens of a sentence, special ones included; None takes the sentence-transformers file's,
                else what the position table allows. Longer sentences are cut, with one warning.
            token_weights: float [vocabulary], for "sif" pooling: `jaxvec.sif_weights(corpus)`.
            attention: the kernel that `encode` uses: "xla", on NVIDIA GPUs "cudnn", on TPUs "flash", or "auto", which takes
                cuDNN for bfloat16 and flash attention for rows of 512 tokens and more. `function` and exports take XLA.

        Raises:
            InputError: anything about the model or the arguments that does not fit; the message says what.
        """
        use_every_core()
        kernel = check_kernel(attention)
        return cls(**load_model(name, pooling, layers, dtype, max_length, token_weights), attention=kernel)

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.config.hidden_size if self.calibration is None else self.calibration.dim

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

    @cached_property
    def params(self) -> dict[str, Any]:
        """What `function` returns beside apply: a nested dict of floating arrays."""
        return {"encoder": self.weights.params, **self._own_params}

    @cached_property
    def fingerprint(self) -> str:
        """A digest of weights and tokenizer: vectors of equal fingerprint, pooling and layers are comparable."""
        return model_fingerprint(self.weights.params, self.tokenizer)

    @cached_property
    def _own_params(self) -> dict[str, Any]:
        params = {}
        if self.token_weights is not None:
            params["token_weights"] = self.token_weights
        if self.calibration is not None:
            params["calibration"] = device_arrays(self.calibration)
        return params

    def function(self, normalize: bool | None = None) -> tuple[Apply, dict[str, Any]]:
        """The same computation for other JAX code: encode, pool and calibrate as one XLA program.

        Returns:
            (apply, params): `apply(params, batch)` maps a `PackedBatch` to float32 [rows · slots, dim], row-major,
            zero where a slot is empty. It is pure and holds no sharding, so that it works inside `jit`, `grad`,
            `vmap`, `shard_map` and `pmap`. `params` is a nested dict of uncommitted floating arrays.

        >>> encoder = SentenceEncoder.load()
        >>> apply, params = encoder.function()
        >>> packing = encoder.pack(["one sentence", "and another"])
        >>> jax.jit(apply)(params, packing.batches[0]).shape, packing.indices[0][:3]
        ((8, 384), array([ 0,  1, -1]))
        """
        return self._apply(self._normalizes(normalize), self.dtype, "xla"), self.params

    def pack(self, sentences: Sentences, batch_tokens: int | None = None) -> Packing:
        """Tokenises and packs: the batches that `function()` takes, and where each vector belongs."""
        return self._pipeline(None).prepare(_as_list(sentences), 0, batch_tokens)[0]

    def warm_up(
        self,
        packing: Packing | None = None,
        *,
        normalize: bool | None = None,
        batch_tokens: int | None = None,
    ) -> list[tuple[int, int, int]]:
        """Compiles the programs that `encode` needs, once: for a packing, or for most corpora; arguments as for `encode`.

        With JAX's persistent compilation cache (`jax_compilation_cache_dir`) later processes read them from there.

        Returns:
            (rows, length, slots) of every program's batches.
        """
        return self._pipeline(normalize).compile(packing, batch_tokens)

    def encode(
        self,
        sentences: Sentences,
        *,
        normalize: bool | None = None,
        batch_tokens: int | None = None,
        show_progress: bool = False,
    ) -> Float[np.ndarray, "n dim"]:
        """Vectors of a list of sentences, in its order.

        Args:
            sentences: the texts; an empty list gives [0, dim], a blank one the vector of the empty sentence.
            normalize: True or False; None follows the folder (its Normalize module, with its own pooling and
                layers and no other calibration).
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
            for chunk, part in self._pipeline(normalize).stream(
                texts, batch_tokens, bar.update, stacklevel=3
            ):
                vectors[row : row + len(chunk)] = part
                row += len(chunk)
        return vectors

    def stream(
        self,
        sentences: Sentences,
        *,
        normalize: bool | None = None,
        batch_tokens: int | None = None,
        tick: Callable[[int], Any] = _silent,
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        """Encodes any number of sentences in constant memory: yields (sentences, vectors) a chunk at a time, in order.

        Tokenising, packing and transfer of later chunks go on while the device computes. `tick` is called with the
        number of sentences whenever a batch has been computed.
        """
        return self._pipeline(normalize).stream(sentences, batch_tokens, tick, stacklevel=2)

    def moments(
        self,
        sentences: Sentences,
        *,
        batch_tokens: int | None = None,
        tick: Callable[[int], Any] = _silent,
    ) -> Moments:
        """Moments of the sentences' vectors, un-normalised, in one pass: the vectors never leave the device.

        >>> from jaxvec.calibration.affine import whitening
        >>> encoder = SentenceEncoder.load()
        >>> moments = encoder.moments(["A man plays.", "It rains.", "Stocks fell.", "A dog barks."])
        >>> encoder.with_calibration(whitening(moments, dim=2)).dim
        2
        """
        state = DeviceMoments.empty(self.dim, local_rows())
        for _, latest in self._running_moments(sentences, state, batch_tokens, tick, stacklevel=4):
            state = latest
        return state.merged()

    def running_moments(
        self,
        sentences: Sentences,
        start: DeviceMoments,
        *,
        batch_tokens: int | None = None,
        tick: Callable[[int], Any] = _silent,
    ) -> Iterator[tuple[list[str], DeviceMoments]]:
        """Yields, after every chunk, (its sentences, the state that `start` has become), on every local device.

        A state is used up, as `start` is, when the next one is asked for; `merged` gives the moments of the last one.
        """
        return self._running_moments(sentences, start, batch_tokens, tick, stacklevel=3)

    def _running_moments(
        self,
        sentences: Sentences,
        state: DeviceMoments,
        batch_tokens: Any,
        tick: Callable[[int], Any],
        stacklevel: int,
    ) -> Iterator[tuple[list[str], DeviceMoments]]:
        for chunk in self._pipeline(False).dispatch(sentences, batch_tokens, tick, stacklevel):
            for vectors, index in chunk.batches:
                state = state.add(vectors, (index >= 0).astype(np.float32))
            yield chunk.sentences, state
        if not np.isfinite(state.host().centre.high).all():
            raise InputError("some sentence's vector is not finite; with dtype 'float32' none should be")

    def with_calibration(
        self, calibration: Calibration, provenance: dict[str, Any] | None = None
    ) -> "SentenceEncoder":
        """The same encoder with a correction applied to its un-normalised vectors.

        Args:
            calibration: fitted on this encoder's vectors, say `whitening(encoder.moments(corpus), dim=256)`. On an
                encoder that has one already it is applied after that.
            provenance: plain values that `save` keeps, such as the corpus and its size.

        Raises:
            InputError: no calibration, one that is not finite or mis-shaped, or one for vectors of another width.
        """
        calibration = accepted(calibration, self.dim)
        combined = calibration if self.calibration is None else compose(self.calibration, calibration)
        record = {"calibration": calibration.figures(), **(provenance or {})}
        if self.provenance is not None:
            record["before"] = self.provenance
        return replace(self, calibration=combined, normalizes=False, provenance=record)

    def with_layers(self, layers: str | int | Sequence[int]) -> "SentenceEncoder":
        """The same encoder, without its calibration, with other hidden states; nothing is loaded again."""
        numbers = resolve_layers(layers, self.config.num_layers)
        return replace(self, layers=numbers, calibration=None, normalizes=False, provenance=None)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the calibration, and which encoder, pooling and layers it belongs to, to a new folder.

        The encoder's weights are not copied: `SentenceEncoder.load(folder)` finds the model under the name it was
        loaded by, or in a subfolder `model`, and checks that its weights are the same.

        Raises:
            InputError: the encoder has no calibration, or the folder exists and is not empty.
        """
        save_calibrated(self, folder)

    def similarity(
        self, a: Shaped[Array | np.ndarray, "*n"], b: Shaped[Array | np.ndarray, "*m"]
    ) -> Float[np.ndarray, "..."]:
        """Cosine of every vector of `a` with every vector of `b`; a zero vector has cosine 0 with everything.

        Args:
            a: [n, dim] or [dim].
            b: [m, dim] or [dim].

        Returns:
            float32 [n, m], without the axis of an argument that was a single vector.
        """
        return cosines(a, b)

    @cached_property
    def _placed(self) -> tuple[dict[str, Any], NamedSharding]:
        rows = local_rows()
        with jax.ensure_compile_time_eval():
            return {"encoder": self.weights.placed, **replicate(self._own_params, rows)}, rows

    @cached_property
    def _apply(self) -> Callable[[bool, str, str], Apply]:
        def make(normalizes: bool, dtype: str, attention: str) -> Apply:
            calibrate = None if self.calibration is None else partial(_calibrate, self.calibration.spec())
            return make_apply(
                self.config, self.pooling, self.layers, jnp.dtype(dtype), calibrate, normalizes, attention
            )

        return cache(make)

    @cached_property
    def _pipelines(self) -> Callable[[bool], Pipeline]:
        # Where bfloat16 products are slower than float32's, weights alone are bfloat16.
        dtype = self.dtype if multiplies_bfloat16() else "float32"
        params, rows = self._placed

        def make(normalizes: bool) -> Pipeline:
            # A device's vectors stay on it: whoever uses them next finds them split as the rows were.
            apply = jax.jit(self._apply(normalizes, dtype, self.attention), out_shardings=rows)
            return Pipeline(self.tokenizer, apply, params, rows)

        return cache(make)

    def _pipeline(self, normalize: Any) -> Pipeline:
        return self._pipelines(self._normalizes(normalize))

    def _normalizes(self, asked: Any) -> bool:
        if not isinstance(asked, bool | np.bool_ | None):
            raise InputError(f"normalize is {asked!r}; expected True, False or None")
        return self.normalizes if asked is None else bool(asked)

    def __getstate__(self) -> dict[str, Any]:
        # Compiled programs stay behind when an encoder is pickled or copied.
        return {part.name: getattr(self, part.name) for part in fields(self)}


def _calibrate(spec: dict[str, Any], arrays: dict[str, Array], vectors: Array) -> Array:
    return rebuild(spec, arrays)(vectors)


def _as_list(sentences: Sentences) -> list[Any]:
    refuse_single_text(sentences)
    return list(sentences)
