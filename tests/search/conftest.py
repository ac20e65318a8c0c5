"""A smaller encoder for retrieval: what is tested here is behind it."""

from pathlib import Path

import pytest

from jaxvec import SentenceEncoder


@pytest.fixture(scope="session")
def model_folder(write_bert, tmp_path_factory) -> Path:
    """A model folder of a random BERT: 1 block × 32."""
    return write_bert(tmp_path_factory.mktemp("small") / "model", blocks=1)


@pytest.fixture(scope="session")
def encoder(model_folder) -> SentenceEncoder:
    """That model."""
    return SentenceEncoder.load(model_folder)
