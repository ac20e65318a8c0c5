"""A smaller encoder for retrieval: what is tested here is behind it."""

from pathlib import Path

import numpy as np
import pytest

from jaxvec import Affine, SentenceEncoder


@pytest.fixture(scope="session")
def model_folder(write_bert, tmp_path_factory) -> Path:
    """A model folder of a random BERT: 1 block × 32."""
    return write_bert(tmp_path_factory.mktemp("small") / "model", blocks=1)


@pytest.fixture(scope="session")
def encoder(model_folder) -> SentenceEncoder:
    """That model."""
    return SentenceEncoder.load(model_folder)


@pytest.fixture(scope="session")
def principal():
    """principal(dim) → a function that fits a calibration: whitened leading directions, by NumPy alone.

    `jaxvec.whitening` does the same, but compiling its moments takes longer than all that is tested here.
    """

    def to(dim):
        def fit(vectors):
            mean = vectors.mean(axis=0)
            _, scale, directions = np.linalg.svd(vectors - mean, full_matrices=False)
            return Affine.from_arrays(mean, directions[:dim].T / scale[:dim] * len(vectors) ** 0.5)

        return fit

    return to
