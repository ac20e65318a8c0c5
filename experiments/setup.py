"""What a run of the tables has to work with: models or their stand-ins, data, and how precisely to compute."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

import jaxvec
from experiments.table import Row, Table
from jaxvec.evaluation.corrections import parse_correction
from jaxvec.evaluation.encoding import Choice, make_choice
from jaxvec.evaluation.evaluate import Method
from jaxvec.evaluation.readers import read_task
from jaxvec.evaluation.settings import OF_THE_TASK, FitText, fitting_text
from jaxvec.evaluation.tasks import Task
from jaxvec.pooling import resolve_layers


@dataclass
class Model:
    """The model that is run for a published one.

    Attributes:
        name: the published model's Hugging Face id.
        folder: what is loaded instead; None loads the model itself.
        blocks: transformer blocks that count as the whole of the stand-in: "last" is the last of these.
    """

    name: str
    folder: str | None = None
    blocks: int | None = None
    dtype: str = "float32"
    _encoders: dict[int, jaxvec.SentenceEncoder] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, dtype: str) -> "Model":
        """From "NAME=FOLDER" or "NAME=FOLDER@BLOCKS"."""
        name, equals, rest = text.partition("=")
        folder, at, blocks = rest.rpartition("@") if "@" in rest else (rest, "", "")
        if not (name and equals and folder) or (at and not blocks.isdecimal()):
            raise jaxvec.InputError(f"--model {text}: expected NAME=FOLDER, or NAME=FOLDER@BLOCKS")
        return cls(name, folder, int(blocks) if blocks else None, dtype)

    def encoder(self, max_length: int) -> jaxvec.SentenceEncoder:
        """The encoder, cut at `max_length` tokens as the published code does."""
        if max_length not in self._encoders:
            encoder = jaxvec.SentenceEncoder.load(
                self.folder or self.name, dtype=self.dtype, max_length=max_length
            )
            if self.blocks is not None and not 1 <= self.blocks <= encoder.config.num_layers:
                raise jaxvec.InputError(
                    f"{self.folder}@{self.blocks}: the model has {encoder.config.num_layers} blocks; give 1 to so many"
                )
            self._encoders[max_length] = encoder
        return self._encoders[max_length]

    def choice(self, row: Row, max_length: int) -> Choice:
        """The row's pooling and layers, counted within the blocks of the stand-in."""
        encoder = self.encoder(max_length)
        blocks = self.blocks or encoder.config.num_layers
        return make_choice(encoder, row.pooling, resolve_layers(row.layers, blocks))

    def describe(self) -> dict[str, Any]:
        """Plain values for the record; folders by their last name only."""
        plain = {"model": self.name, "dtype": self.dtype}
        if self.folder is not None:
            plain |= {"stand_in": Path(self.folder).name, "blocks": self.blocks}
        return plain


@dataclass
class Setup:
    """Everything a table is run with."""

    data: Path
    models: dict[str, Model]
    dtype: str
    resamples: int

    def model(self, name: str) -> Model:
        """The stand-in for a model, or the model itself."""
        return self.models.setdefault(name, Model(name, dtype=self.dtype))

    def task(self, name: str) -> Task:
        """A task, read once."""
        if name not in self._tasks:
            self._tasks[name] = read_task(name, self.data)
        return self._tasks[name]

    def fit_text(self, task: Task, setting: str) -> FitText:
        """What is fitted on; a text that no task brings along is read once."""
        if setting in OF_THE_TASK:
            return fitting_text(task, setting, self.data)
        if setting not in self.shared:
            self.shared[setting] = fitting_text(task, setting, self.data)
        return self.shared[setting]

    def task_digest(self, task: Task, fit: str | None) -> str:
        """A digest of the scored pairs, and of what is fitted on."""
        key = task.name, fit
        if key not in self._digests:
            fitted_on = [] if fit is None else self.fit_text(task, fit).sentences
            self._digests[key] = digest([*task.sentences, *map(str, task.scores), *fitted_on])
        return self._digests[key]

    def read_digest(self, table: Table) -> str:
        """A digest of what a table of other things than scores reads."""
        key = table.title, None
        if key not in self._digests:
            self._digests[key] = digest(table.reads(self))
        return self._digests[key]

    def method(self, row: Row, max_length: int) -> Method:
        """How the row's vectors are made."""
        choice = self.model(row.model).choice(row, max_length)
        return Method(choice, self.correction(row.calibrate), row.fit)

    def correction(self, name: str) -> Any:
        """A calibration by name; the same one for the same name, so that methods of several tables are equal."""
        return self._corrections.setdefault(name, parse_correction(name))

    def describe(self) -> dict[str, Any]:
        """What the figures depend on beside model and method."""
        return {
            "jaxvec": jaxvec.__version__,
            "jax": jax.__version__,
            "device": f"{jax.local_device_count()} × {jax.local_devices()[0].device_kind}",
            "resamples": self.resamples,
        }

    @cached_property
    def shared(self) -> dict[str, FitText]:
        """Texts to fit on that no task brings along, read so far."""
        return {}

    @cached_property
    def _digests(self) -> dict[tuple[str, str | None], str]:
        return {}

    @cached_property
    def _tasks(self) -> dict[str, Task]:
        return {}

    @cached_property
    def _corrections(self) -> dict[str, Any]:
        return {}


def digest(texts: Iterable[str]) -> str:
    """The same for the same texts in the same order, and only then."""
    found = hashlib.blake2b(digest_size=8)
    for text in texts:
        found.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return found.hexdigest()
