"""A SentenceEncoder as a model that the MTEB benchmark can evaluate."""

import hashlib
import json
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from jaxvec.encoder import SentenceEncoder
from jaxvec.evaluation.metrics import cosine


class MtebEncoder:
    """Implements MTEB's encoder protocol (mteb 2): `mteb.evaluate(MtebEncoder(encoder), tasks)`.

    Vectors are those of `encoder.encode`; similarity is the zero-safe cosine. No prompt is put before texts.

    Example:
        >>> model = MtebEncoder(SentenceEncoder.load())
        >>> batches = [{"text": ["A dog barks.", "It rains."]}, {"text": ["Tea."]}]  # what MTEB's loaders yield
        >>> model.encode(batches).shape
        (3, 384)
    """

    def __init__(self, encoder: SentenceEncoder):
        self.encoder = encoder

    def encode(self, inputs: Iterable[dict[str, Any]], **about_the_task: Any) -> Float[np.ndarray, "n dim"]:
        """Vectors of all texts of the batches, float32 [n, dim], in order."""
        return self.encoder.encode([text for batch in inputs for text in batch["text"]])

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Float[np.ndarray, "n m"]:
        """Cosine of every row of one with every row of the other."""
        return self.encoder.similarity(np.asarray(embeddings1), np.asarray(embeddings2))

    def similarity_pairwise(
        self, embeddings1: Float[Array | np.ndarray, "n d"], embeddings2: Float[Array | np.ndarray, "n d"]
    ) -> Float[np.ndarray, " n"]:
        """Cosine of each row of one with the same row of the other."""
        return cosine(embeddings1, embeddings2)

    @cached_property
    def mteb_model_meta(self) -> Any:
        """What MTEB files its results under: the model's name, and a revision that knows its calibration."""
        from mteb.models import ModelMeta

        described = self.encoder.describe()
        name = described["model"].rstrip("/").split("/")[-1]
        overwrites = {
            "name": f"jaxvec/{name}",
            "revision": self._revision(),
            "max_tokens": self.encoder.max_length,
            "embed_dim": self.encoder.dim,
            "similarity_fn_name": "cosine",
            "framework": [],
        }
        return ModelMeta.create_empty(overwrites=overwrites)

    def _revision(self) -> str:
        """A digest of all that the vectors depend on: MTEB takes results of equal name and revision for the same."""
        encoder = self.encoder
        digest = hashlib.sha256(json.dumps([encoder.fingerprint, encoder.describe()]).encode())
        if encoder.calibration is not None:
            digest.update(json.dumps(encoder.calibration.spec()).encode())
            for name, array in sorted(encoder.calibration.to_arrays().items()):
                digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:32]
