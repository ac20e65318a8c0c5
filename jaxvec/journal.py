"""What a run over a corpus has finished, one line a chunk, so that a killed one goes on where it stopped."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jaxvec.errors import InputError

# On other devices or versions the rows agree within rounding, so a run may move; anything else is another run.
ENVIRONMENT = ("devices", "versions")


def text_digest(sentences: Sequence[str]) -> str:
    """A digest of consecutive sentences and of where each ends.

    >>> text_digest(["ab", "c"]) == text_digest(["a", "bc"])
    False
    """
    joined = "".join(f"{len(sentence)}:{sentence}" for sentence in sentences)
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()


def differences(then: dict[str, Any], now: dict[str, Any], leave_out: Sequence[str] = ()) -> str:
    """What differs between two plans, in words; an empty string if nothing does.

    >>> differences({"dtype": "bfloat16", "dim": 3}, {"dtype": "float32", "dim": 3})
    "dtype was 'bfloat16' and is 'float32'"
    """
    names = [name for name in {**then, **now} if name not in leave_out]
    changed = [name for name in names if then.get(name) != now.get(name)]
    return ", ".join(f"{name} was {then.get(name)!r} and is {now.get(name)!r}" for name in changed)


class Journal:
    """The finished chunks of a run, in a file that only grows: first its plan, then one JSON object a chunk.

    A line counts once its newline is on the disk; what a kill tore off is dropped when the file is opened again.
    While one process has it open, no other can.

    Args:
        path: the file; its folder exists.
        plan: what the run does, as plain JSON values. An earlier plan must be the same, but for `ENVIRONMENT`.

    Attributes:
        entries: what `append` was given, in this run and before.

    Raises:
        InputError: the file belongs to a run of another plan, which is named, or another process has it open.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "progress.jsonl"
        >>> with Journal(path, {"model": "a"}) as journal:
        ...     journal.append({"chunk": 0, "rows": 7})
        >>> with Journal(path, {"model": "a"}) as journal:
        ...     journal.entries
        [{'chunk': 0, 'rows': 7}]
    """

    def __init__(self, path: Path, plan: dict[str, Any]):
        try:
            self._file = open(path, "a+b")  # noqa: SIM115
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from None
        try:
            _lock(self._file, path.parent)
            self.entries = self._recover(path, plan)
        except BaseException:
            self.close()
            raise

    def append(self, entry: dict[str, Any]) -> None:
        """Notes a finished chunk; what belongs to it must be on the disk already."""
        self.entries.append(entry)  # first: a signal may come as soon as the line is on the disk
        try:
            self._write(entry)
        except InputError:
            self.entries.pop()
            raise

    def close(self) -> None:
        """Lets others open the file."""
        with suppress(OSError):  # closing flushes again what a full disk did not take
            self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _recover(self, path: Path, plan: dict[str, Any]) -> list[dict[str, Any]]:
        self._file.seek(0)
        lines = self._file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._file.truncate(len(whole))
        then, entries = _parse(path, whole)
        if then is None:
            self._write(plan)
        else:
            refuse_changes(path.parent, then, plan)
        return entries

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise InputError(f"{self._file.name} cannot be written: {error.strerror}") from None


def read_journal(path: Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The plan and the entries of a journal that another process may be writing; (None, []) if there is none."""
    try:
        lines = path.read_bytes()
    except FileNotFoundError:
        return None, []
    return _parse(path, lines[: lines.rfind(b"\n") + 1])


def refuse_changes(where: Path, then: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuses to go on with work of another plan, naming what differs; a changed environment only warns."""
    import warnings

    if changed := differences(then, now, ENVIRONMENT):
        raise InputError(
            f"{where} holds work of another run: {changed}. Give the same model, corpus and options to go on "
            "with it, --restart to throw it away, or another output"
        )
    if moved := differences(then, now):
        warnings.warn(
            f"{where} was begun elsewhere ({moved}); its rows agree within rounding with those to come, not in every bit",
            stacklevel=2,
        )


def damaged(path: Path) -> InputError:
    """The error for a file of unfinished work that is not as it was written."""
    return InputError(
        f"{path} is damaged; give --restart, or remove its folder, to throw the unfinished work away"
    )


def json_object(path: Path, text: bytes, *keys: str) -> dict[str, Any]:
    """A JSON object of a file of unfinished work, which has these keys.

    Raises:
        InputError: the text is none.
    """
    with suppress(ValueError):
        if isinstance(found := json.loads(text), dict) and all(key in found for key in keys):
            return found
    raise damaged(path)


def _parse(path: Path, lines: bytes) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    first, *rest = lines.splitlines() or [b""]
    plan = json_object(path, first) if first else None
    return plan, [json_object(path, line, "chunk", "rows") for line in rest]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes that ask for the same folder out of it, while the block lasts.

    Raises:
        InputError: another process is at work in it, or it cannot be opened.
    """
    if os.name == "nt":  # where a folder cannot be opened
        yield
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{folder} cannot be opened: {error.strerror}") from None
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def refuse_if_busy(work: Path) -> None:
    """Refuses a folder of unfinished work in which a process has a journal open."""
    for path in work.glob("progress-*.jsonl"):
        with suppress(FileNotFoundError), open(path, "rb") as file:
            _lock(file, work)


def _lock(file: Any, folder: Path) -> None:
    with suppress(ImportError):  # not on Windows
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: another process is working on it; wait for it") from None
        except OSError:
            pass  # a file system without locks
