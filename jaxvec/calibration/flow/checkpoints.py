"""Checkpoints of a training, by Orbax: written after every epoch, resumed bit for bit."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxvec.calibration.flow.training import State
from jaxvec.errors import InputError

History = list[tuple[np.ndarray, np.ndarray]]


class Checkpoints:
    """The last two epochs of one training, in a folder of their own.

    Args:
        folder: new, or that of the same training, interrupted.
        identity: plain values that say which training this is; a folder with others is refused.
    """

    def __init__(self, folder: str | os.PathLike[str], identity: dict[str, Any]):
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax says much at every save
        self.folder, self.ocp = Path(os.path.abspath(folder)), ocp
        self.identity = json.loads(json.dumps(identity))
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{folder} is a file; expected the folder of a training's checkpoints")
        if not self.folder.parent.is_dir():
            raise InputError(f"{folder}: there is no folder {self.folder.parent}; make it first")
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self.manager = ocp.CheckpointManager(self.folder, options=options)

    def save(self, states: State, history: History) -> None:
        """Adds the state after an epoch; it is there in full or not at all."""
        tree = {"state": states._asdict(), "history": [list(losses) for losses in history]}
        self.manager.save(
            len(history),
            args=self.ocp.args.Composite(
                training=self.ocp.args.StandardSave(tree), identity=self.ocp.args.JsonSave(self.identity)
            ),
        )

    def restore(self, like: State) -> tuple[State, History] | None:
        """(states, history) of the latest epoch, or None where there is none.

        Raises:
            InputError: it cannot be read, or is of a training with other data or settings.
        """
        epoch = self.manager.latest_step()
        if epoch is None:
            return None
        args = self.ocp.args
        wanted = {
            "state": like._asdict(),
            "history": [[np.asarray(like.best_loss), np.asarray(like.best_loss)]] * epoch,
        }
        try:
            found = self.manager.restore(epoch, args=args.Composite(identity=args.JsonRestore()))["identity"]
            if found == self.identity:
                composite = args.Composite(training=args.StandardRestore(jax.tree.map(np.asarray, wanted)))
                tree = self.manager.restore(epoch, args=composite)["training"]
        except Exception as error:  # Orbax, TensorStore and JSON each have their own
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise InputError(
                f"{self.folder / str(epoch)}: this checkpoint cannot be read ({reason}); remove it to go on from "
                "the one before, or remove the folder to start anew"
            ) from error
        if found != self.identity:
            other = [name for name in self.identity if found.get(name) != self.identity[name]]
            raise InputError(
                f"{self.folder}: these checkpoints are of another training (its {', '.join(other)} differ); "
                "name another folder"
            )
        history = [(np.asarray(trained), np.asarray(held)) for trained, held in tree["history"]]
        return State(**tree["state"]), history
