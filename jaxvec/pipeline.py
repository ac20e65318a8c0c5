"""A stream of sentences → batches on the device, with tokenising and packing going on ahead of it."""

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from jaxvec.errors import InputError, is_whole
from jaxvec.packing import PackedBatch, Packing, common_shapes, pack
from jaxvec.tokens import Tokenizer

CHUNK = 16_384  # sentences tokenised and packed together; packing never crosses a chunk
_TOKENS_PER_DEVICE = {"cpu": 1_024}  # what stays in its cache; elsewhere 32,768
_MOST_BATCH_TOKENS = 1 << 24  # a batch is rounded up to a fraction of it, so a slip would fill the memory
_UNSET = -1  # of jax_num_cpu_devices
_MOST_CPU_DEVICES = 32  # each holds a copy of the weights
_IN_FLIGHT = 4  # batches sent ahead of the one whose result is awaited


def check_batch_tokens(asked: Any) -> int | None:
    """`asked`, if it is None or can be the number of tokens of a batch."""
    if asked is None:
        return None
    if not is_whole(asked, 1) or asked > _MOST_BATCH_TOKENS:
        raise InputError(
            f"batch_tokens is {asked!r}; expected a positive number of tokens, at most {_MOST_BATCH_TOKENS:,}"
        )
    return int(asked)


def refuse_single_text(sentences: Any, name: str = "sentences") -> None:
    """Refuses one text, which would be taken for as many sentences as it has letters, and what holds no texts."""
    if isinstance(sentences, str | bytes):
        raise InputError(f"{name} is a single text; expected a list of them: [text]")
    if isinstance(sentences, Mapping | Set) or hasattr(sentences, "columns"):
        raise InputError(
            f"{name} is {type(sentences).__name__}, whose items are keys, columns or in no order; expected a list of "
            "texts, such as one column"
        )
    try:
        iter(sentences)
    except TypeError:
        raise InputError(f"{name} is {type(sentences).__name__}; expected a list of str") from None


@dataclass(frozen=True, eq=False)
class Weights:
    """An encoder's parameters, and their copies on the devices, which all encoders derived from it share."""

    params: dict[str, Any]

    @cached_property
    def placed(self) -> dict[str, Any]:
        """The parameters on every local device."""
        with jax.ensure_compile_time_eval():  # kept for later, whatever is being traced now
            return replicate(self.params, local_rows())

    def __getstate__(self) -> dict[str, Any]:
        return {"params": self.params}


@dataclass(frozen=True)
class Chunk:
    """Consecutive sentences of a stream and their vectors, still on the device.

    Attributes:
        sentences: the texts.
        batches: (float32 device array [rows · slots, dim], int64 index [rows · slots] of the sentence within the
            chunk, −1 for an empty slot), in no particular order.
    """

    sentences: list[Any]
    batches: list[tuple[Array, np.ndarray]]

    def collect(self) -> np.ndarray:
        """The vectors on the host, float32 [sentences, dim], in the order of the sentences."""
        vectors = np.empty((len(self.sentences), self.batches[0][0].shape[-1]), np.float32)
        for result, index in self.batches:
            filled = index >= 0
            vectors[index[filled]] = np.asarray(result)[filled]
        return vectors


@dataclass(frozen=True, eq=False)
class Pipeline:
    """The road from a stream of sentences to their vectors, over every local device.

    Attributes:
        tokenizer: texts → ids.
        apply: one compiled function of (params, batch).
        params: already on the devices.
        rows: how the rows of a batch are spread over the devices.
    """

    tokenizer: Tokenizer
    apply: Callable[[Any, PackedBatch], Array]
    params: Any
    rows: NamedSharding

    def prepare(self, texts: list[Any], first_row: int, batch_tokens: int | None) -> tuple[Packing, int]:
        """Tokenises and packs; also says how many sentences were cut."""
        tokens = self._batch_tokens(batch_tokens)
        ids = self.tokenizer(texts, first_row)
        return pack(ids, tokens, self.rows.mesh.size), ids.truncated

    def compile(self, packing: Packing | None, batch_tokens: int | None) -> list[tuple[int, int, int]]:
        """Compiles, by running them once, the programs of a packing or of most corpora: (rows, length, slots) of each."""
        if packing is None:
            tokens = self._batch_tokens(batch_tokens)
            shapes = common_shapes(self.tokenizer.max_length, tokens, self.rows.mesh.size)
        else:
            shapes = sorted({(*batch.token_ids.shape, batch.slots) for batch in packing.batches})
        for rows, length, slots in shapes:
            empty = np.zeros((rows, length), np.int32)
            self._compute(PackedBatch(empty, empty, empty, empty, slots=slots)).block_until_ready()
        return shapes

    def _batch_tokens(self, asked: int | None) -> int:
        usual = _TOKENS_PER_DEVICE.get(jax.default_backend(), 32_768) * self.rows.mesh.size
        return check_batch_tokens(asked) or usual

    def _compute(self, batch: PackedBatch) -> Array:
        with jax.set_mesh(self.rows.mesh):  # whatever mesh the caller has set
            return self.apply(self.params, jax.device_put(batch, self.rows))

    def stream(
        self, sentences: Iterable[Any], batch_tokens: int | None, tick: Callable[[int], Any], stacklevel: int
    ) -> Iterator[tuple[list[Any], np.ndarray]]:
        """Yields (sentences, float32 vectors on the host) a chunk at a time, in order; arguments as for `dispatch`."""
        # One chunk behind: it is fetched, and used by the caller, while the device works on the next.
        waiting: Chunk | None = None
        failure: Exception | None = None
        try:
            for chunk in self.dispatch(sentences, batch_tokens, tick, stacklevel + 1):
                if waiting is not None:
                    yield waiting.sentences, waiting.collect()
                waiting = chunk
        except Exception as error:
            failure = error
        if waiting is not None:  # what came before a bad row is not lost
            yield waiting.sentences, waiting.collect()
        if failure is not None:
            raise failure

    def dispatch(
        self, sentences: Iterable[Any], batch_tokens: int | None, tick: Callable[[int], Any], stacklevel: int
    ) -> Iterator[Chunk]:
        """Yields a chunk when nearly all of its batches have been computed; the next one is prepared meanwhile.

        Args:
            sentences: any number of them.
            batch_tokens: tokens of a batch; None suits the hardware.
            tick: called with the number of sentences whenever a batch has been computed.
            stacklevel: whom the warning about cut sentences points at, as `warnings.warn` counts.
        """
        # The stream is read on the caller's thread: it may be bound to it, and a signal must reach a read that waits.
        refuse_single_text(sentences)
        check_batch_tokens(batch_tokens)
        texts, row, truncated = iter(sentences), 0, 0
        failure: Exception | None = None

        def read() -> list[Any]:
            nonlocal failure
            try:
                return [] if failure else list(islice(texts, CHUNK))
            except Exception as error:  # held until the chunks before it are done
                failure = error
                return []

        in_flight: deque[tuple[Array, np.ndarray]] = deque()
        with ThreadPoolExecutor(1, "jaxvec-tokens") as worker:
            following = read()
            preparing = worker.submit(self.prepare, following, row, batch_tokens)
            while chunk := following:
                packing, cut = preparing.result()
                row, truncated = row + len(chunk), truncated + cut
                following = read()
                preparing = worker.submit(self.prepare, following, row, batch_tokens)
                sent: list[tuple[Array, np.ndarray]] = []
                for batch, index in zip(packing.batches, packing.indices, strict=True):
                    sent.append((self._compute(batch), index))
                    in_flight.append(sent[-1])
                    if len(in_flight) > _IN_FLIGHT:
                        _await(*in_flight.popleft(), tick)
                yield Chunk(chunk, sent)
        while in_flight:
            _await(*in_flight.popleft(), tick)
        if failure is not None:
            raise failure
        if truncated:
            limit = self.tokenizer.max_length
            warnings.warn(
                f"{truncated} of {row} sentences were cut to {limit} tokens (max_length)",
                stacklevel=stacklevel,
            )


def use_every_core() -> None:
    """On a CPU, makes one JAX device a core, which takes half the time of one device for all.

    Nothing is changed where a backend exists already, or the number was set: by `jax_num_cpu_devices`, by the variable
    JAX_NUM_CPU_DEVICES, or among XLA_FLAGS.
    """
    asked = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if asked or jax.config.jax_num_cpu_devices != _UNSET:
        return
    with suppress(RuntimeError):  # a backend exists
        jax.config.update("jax_num_cpu_devices", min(_cores(), _MOST_CPU_DEVICES))


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def local_rows() -> NamedSharding:
    """Rows split over every local device."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), ("rows",)), PartitionSpec("rows"))


def replicate(params: Any, rows: NamedSharding) -> Any:
    """The same params on every device that holds rows."""
    return jax.device_put(params, NamedSharding(rows.mesh, PartitionSpec()))


def _await(vectors: Array, index: np.ndarray, tick: Callable[[int], Any]) -> None:
    jax.block_until_ready(vectors)
    tick(int((index >= 0).sum()))
