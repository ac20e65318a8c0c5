"""Sentence vectors whose cosine means something, in JAX."""

import importlib
from typing import TYPE_CHECKING, Any

from jaxvec.errors import InputError

if TYPE_CHECKING:
    from jaxvec.encoder import SentenceEncoder
    from jaxvec.packing import PackedBatch

__version__ = "0.1.0"
__all__ = ["InputError", "PackedBatch", "SentenceEncoder", "__version__"]

_HOMES = {"PackedBatch": "jaxvec.packing", "SentenceEncoder": "jaxvec.encoder"}


def __getattr__(name: str) -> Any:
    # Lazy, so that `import jaxvec` alone costs nothing but this file.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'jaxvec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
