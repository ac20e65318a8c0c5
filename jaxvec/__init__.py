"""Sentence vectors whose cosine means something, in JAX."""

import importlib
from typing import TYPE_CHECKING, Any

from jaxvec.errors import InputError

if TYPE_CHECKING:
    from jaxvec.calibration.affine import Affine, pca, remove_components, standardize, whitening
    from jaxvec.calibration.flow import Flow, FlowEnsemble
    from jaxvec.calibration.moments import Moments
    from jaxvec.encoder import SentenceEncoder
    from jaxvec.packing import PackedBatch
    from jaxvec.parallel import initialize
    from jaxvec.resume import encode_to
    from jaxvec.search.corpus import top_k
    from jaxvec.search.index import Index
    from jaxvec.shards import Shards
    from jaxvec.sif import sif_weights

__version__ = "0.1.0"
_HOMES = {
    "Affine": "jaxvec.calibration.affine",
    "Index": "jaxvec.search.index",
    "Flow": "jaxvec.calibration.flow",
    "FlowEnsemble": "jaxvec.calibration.flow",
    "Moments": "jaxvec.calibration.moments",
    "PackedBatch": "jaxvec.packing",
    "SentenceEncoder": "jaxvec.encoder",
    "Shards": "jaxvec.shards",
    "encode_to": "jaxvec.resume",
    "initialize": "jaxvec.parallel",
    "pca": "jaxvec.calibration.affine",
    "remove_components": "jaxvec.calibration.affine",
    "sif_weights": "jaxvec.sif",
    "standardize": "jaxvec.calibration.affine",
    "top_k": "jaxvec.search.corpus",
    "whitening": "jaxvec.calibration.affine",
}
__all__ = [
    "Affine",
    "Flow",
    "FlowEnsemble",
    "Index",
    "InputError",
    "Moments",
    "PackedBatch",
    "SentenceEncoder",
    "Shards",
    "encode_to",
    "initialize",
    "pca",
    "remove_components",
    "sif_weights",
    "standardize",
    "top_k",
    "whitening",
]


def __getattr__(name: str) -> Any:
    # Lazy, so that `import jaxvec` alone costs nothing but this file.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'jaxvec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
