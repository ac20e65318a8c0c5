"""`import jaxvec` is light, and neither torch, tensorflow nor transformers is needed to encode."""

import pytest

import jaxvec

REPORT = """
import json, sys
import jaxvec
names = dir(jaxvec)
heavy = sorted({name.partition(".")[0] for name in sys.modules})
homes = [getattr(jaxvec, name).__module__ for name in jaxvec.__all__]
print(json.dumps({"loaded": heavy, "names": names, "homes": homes}))
"""

ENCODE = """
import json, sys
blocked = ("torch", "transformers", "tensorflow", "sentence_transformers", "sklearn", "scipy", "pandas")
for name in blocked:
    sys.modules[name] = None  # importing one of them now raises ImportError
import jaxvec
encoder = jaxvec.SentenceEncoder.load(sys.argv[1])
vectors = encoder.encode(["the man plays", "", "it rains."])
print(json.dumps({"shape": vectors.shape, "loaded": [n for n in blocked if sys.modules[n] is not None]}))
"""


@pytest.fixture(scope="module")
def report(run_python):
    return run_python(REPORT)


def test_import_is_light(report):
    heavy = {
        "jax",
        "flax",
        "numpy",
        "transformers",
        "tensorflow",
        "torch",
        "tokenizers",
        "safetensors",
        "tqdm",
    }
    assert not heavy & set(report["loaded"])


def test_every_public_name_resolves_to_jaxvec(report):
    assert set(jaxvec.__all__) <= set(report["names"])
    assert all(home.startswith("jaxvec.") for home in report["homes"])


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(jaxvec, "Sentences")


def test_encoding_needs_neither_torch_nor_transformers(run_python, bert_folder):
    report = run_python(ENCODE, bert_folder)
    assert report == {"shape": [3, 32], "loaded": []}
