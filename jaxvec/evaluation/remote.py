"""Data sets from tensorflow-datasets and from the Hugging Face hub → the same Task as from local folders."""

from collections.abc import Iterator
from typing import Any

from jaxvec.errors import InputError
from jaxvec.evaluation.readers import as_pairs
from jaxvec.evaluation.tasks import PUBLISHED, Pairs, Task, make_task
from jaxvec.tablefiles import read_columns

_SPLITS = {"train": "train", "validation": "dev", "test": "test"}
# Where the Hugging Face hub keeps every data set as Parquet, whatever its own files are.
_PARQUET = "refs/convert/parquet"
_QNLI_LABELS = {0: 1.0, 1: 0.0}  # entailment, not_entailment


def read_tfds(name: str, folder: str | None = None) -> Task:
    """A data set that tensorflow-datasets carries, without TensorFlow: it is prepared and read as ArrayRecord.

    Args:
        name: "stsb" or "qnli" (GLUE keeps the scores of its test splits to itself: dev is scored).
        folder: where tensorflow-datasets has, or shall put, its data; None is its own default.

    Raises:
        InputError: it carries no such data set, is not installed, or can neither find nor fetch the data.
    """
    known = PUBLISHED[name]
    if known.tfds is None:
        carried = ", ".join(f"{key} ({task.tfds})" for key, task in PUBLISHED.items() if task.tfds)
        raise InputError(
            f"tensorflow-datasets does not carry {known.title}; it has {carried}. {_local(name)}"
        )
    try:
        import tensorflow_datasets as tfds
    except ImportError:
        raise InputError(f"--data tfds needs: pip install 'jaxvec[tfds]'. {_local(name)}") from None
    try:
        try:
            builder = tfds.builder(known.tfds, data_dir=folder, file_format="array_record")
        except tfds.core.registered.DatasetNotFoundError:
            # Builders register when their module is imported, which a prepared data set does not need.
            import tensorflow_datasets.text.glue

            builder = tfds.builder(known.tfds, data_dir=folder, file_format="array_record")
            builder.download_and_prepare()
        splits = {
            _SPLITS[split]: as_pairs(
                _tfds_rows(builder.as_data_source(split=split), name), f"{known.tfds} {split}"
            )
            for split in builder.info.splits
            if split in _SPLITS
        }
    except InputError:
        raise
    except Exception as error:  # whatever a download or a data set of an older version raises
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"tensorflow-datasets cannot give {known.tfds}: {reason}. {_local(name)}") from error
    return make_task(name, splits, f"tensorflow-datasets {known.tfds}")


def _tfds_rows(source: Any, name: str) -> Iterator[tuple[int, tuple[str, str, float | None]]]:
    first, second = ("question", "sentence") if name == "qnli" else ("sentence1", "sentence2")
    rows = sorted((source[i] for i in range(len(source))), key=lambda row: int(row["idx"]))
    for number, row in enumerate(rows, start=1):
        label = float(row["label"])
        # −1 is GLUE's mark of a hidden label.
        score = None if label < 0 else _QNLI_LABELS[int(label)] if name == "qnli" else label
        yield number, (row[first].decode(), row[second].decode(), score)


def read_hub(name: str) -> Task:
    """A data set from the Hugging Face hub, fetched once as Parquet and kept in the hub's cache.

    Raises:
        InputError: the hub has it not in a form with the published splits, or cannot be reached.
    """
    known = PUBLISHED[name]
    if known.hub is None:
        carried = ", ".join(key for key, task in PUBLISHED.items() if task.hub)
        raise InputError(f"{known.title} is not read from the hub; {carried} are. {_local(name)}")
    import huggingface_hub

    parts: dict[str, list[str]] = {}
    try:
        for file in huggingface_hub.HfApi().list_repo_files(
            known.hub, repo_type="dataset", revision=_PARQUET
        ):
            folder, _, kind = file.rpartition(".")
            split = folder.split("/")[-2] if "/" in folder else ""
            if kind == "parquet" and split in _SPLITS:
                local = huggingface_hub.hf_hub_download(
                    known.hub, file, repo_type="dataset", revision=_PARQUET
                )
                parts.setdefault(_SPLITS[split], []).append(local)
    except Exception as error:  # httpx, the hub and the disk each raise their own
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f"the hub's data set {known.hub} cannot be fetched: {reason}. {_local(name)}"
        ) from error
    splits = {split: _hub_pairs(sorted(files), f"{known.hub} {split}") for split, files in parts.items()}
    return make_task(name, splits, f"Hugging Face hub {known.hub}")


def _hub_pairs(files: list[str], where: str) -> Pairs:
    rows = (row for file in files for row in read_columns(file, ("sentence1", "sentence2", "score")))
    return as_pairs(((number, row) for number, (_, row) in enumerate(rows, start=1)), where)


def _local(name: str) -> str:
    folders = " or ".join(f"{folder}/" for folder in PUBLISHED[name].folders)
    return f"As local files: --data FOLDER with {folders} as released"
