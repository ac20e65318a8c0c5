"""Checkpoints of a training, by Orbax: written after every round, resumed bit for bit."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxvec.calibration.flow.training import Losses, State
from jaxvec.errors import InputError


def check_place(folder: Any) -> None:
    """Raises an InputError if no checkpoints can be kept there."""
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise InputError(f"checkpoint is {folder!r}; expected the name of a folder")
    place = Path(os.path.abspath(folder))
    with _named(folder):
        if place.exists() and not place.is_dir():
            raise InputError(f"{folder} is a file; expected the folder of a training's checkpoints")
        if not place.parent.is_dir():
            raise InputError(f"{folder}: there is no folder {place.parent}; make it first")
        if place.is_dir() and (other := _foreign(place)) is not None:
            raise InputError(
                f"{folder}: its {other} is no checkpoint of a flow's training; name another folder, new or empty"
            )


def _foreign(place: Path) -> str | None:
    """The name of something in the folder that no training of a flow has put there."""
    rounds = []
    for entry in place.iterdir():
        if entry.is_dir() and entry.name.isdecimal():
            rounds.append(int(entry.name))
        elif not entry.name.startswith(".") and ".orbax-checkpoint-tmp" not in entry.name:
            return entry.name
    # Orbax removes the oldest piece by piece: only the latest is sure to be whole.
    return str(max(rounds)) if rounds and not (place / str(max(rounds)) / "identity").exists() else None


@contextmanager
def _named(folder: Any) -> Iterator[None]:
    """What the file system or Orbax cannot do, as an InputError that names the folder."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:  # TensorStore reports a full disk as a ValueError
        reason = (
            getattr(error, "strerror", None) or (str(error) or type(error).__name__).splitlines()[0][:200]
        )
        raise InputError(
            f"{folder}: checkpoints cannot be kept there ({reason}); make room and give access, or name another folder"
        ) from error


class Checkpoints:
    """The last two rounds of one training, in a folder of their own.

    Args:
        folder: new, or that of the same training, interrupted.
        identity: plain values that say which training this is; a folder with others is refused.
    """

    def __init__(self, folder: str | os.PathLike[str], identity: dict[str, Any]):
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax says much at every save
        self.folder, self.ocp = Path(os.path.abspath(folder)), ocp
        self.identity = json.loads(json.dumps(identity))
        check_place(folder)
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        with _named(folder):
            self.manager = ocp.CheckpointManager(self.folder, options=options)

    def save(self, states: State, history: list[Losses]) -> None:
        """Adds the state after a round; it is there in full or not at all."""
        tree = {"state": states._asdict(), "history": [losses._asdict() for losses in history]}
        items = self.ocp.args.Composite(
            training=self.ocp.args.StandardSave(tree), identity=self.ocp.args.JsonSave(self.identity)
        )
        with _named(self.folder):
            self.manager.save(len(history), args=items)

    def restore(self, like: State, steps: int) -> tuple[State, list[Losses]] | None:
        """(states, history) of the latest round of so many steps, or None where there is none.

        Raises:
            InputError: it cannot be read, or is of a training with other data or settings.
        """
        number = self.manager.latest_step()
        if number is None:
            return None
        args, seeds = self.ocp.args, len(like.seed)
        one = np.zeros(seeds, np.float32)
        losses = Losses(np.zeros((seeds, steps), np.float32), one, one, one, np.zeros(seeds, bool))
        wanted = {"state": jax.tree.map(np.asarray, like._asdict()), "history": [losses._asdict()] * number}
        try:
            found = self.manager.restore(number, args=args.Composite(identity=args.JsonRestore()))["identity"]
            if found == self.identity:
                composite = args.Composite(training=args.StandardRestore(wanted))
                tree = self.manager.restore(number, args=composite)["training"]
        except Exception as error:  # Orbax, TensorStore and JSON each have their own
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise InputError(
                f"{self.folder / str(number)}: this checkpoint cannot be read ({reason}); remove it to go on from "
                "the one before, or remove the folder to start anew"
            ) from error
        if not isinstance(found, dict):
            raise InputError(
                f"{self.folder}: its {number} is no checkpoint of a flow's training; name another folder, new or empty"
            )
        if found != self.identity:
            other = [name for name in self.identity if found.get(name) != self.identity[name]]
            raise InputError(
                f"{self.folder}: these checkpoints are of another training (its {', '.join(other)} differ); "
                "name another folder"
            )
        return State(**tree["state"]), [Losses(**losses) for losses in tree["history"]]
