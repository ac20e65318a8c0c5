"""A saved calibration: what comes back, and everything that must not be accepted."""

import json
import shutil

import numpy as np
import pytest

from jaxvec import InputError, SentenceEncoder, remove_components, sif_weights, whitening
from jaxvec.calibration.folder import META

LINES = ["the man plays", "it rains", "the dog plays guitar", "a dog", "1 2 3", "it, the man", "b c d e"]


@pytest.fixture(scope="module")
def fitted(bert_folder):
    encoder = SentenceEncoder.load(bert_folder, layers=(1, -1), max_length=40)
    return encoder.with_calibration(whitening(encoder.moments(LINES), dim=4), {"corpus": "lines"})


@pytest.fixture
def folder(fitted, tmp_path):
    fitted.save(tmp_path / "fitted")
    return tmp_path / "fitted"


def test_everything_comes_back(fitted, folder):
    again = SentenceEncoder.load(folder)
    np.testing.assert_array_equal(again.encode(LINES), fitted.encode(LINES))
    assert (again.layers, again.max_length, again.dim) == ((1, 3), 40, 4)
    assert again.provenance == json.loads(json.dumps(fitted.provenance))
    assert again.calibration.figures() == fitted.calibration.figures()
    assert again.fingerprint == fitted.fingerprint


def test_a_saved_folder_can_be_loaded_calibrated_further_and_saved_again(fitted, folder, tmp_path):
    again = SentenceEncoder.load(folder)
    twice = again.with_calibration(remove_components(again.moments(LINES), 1))
    twice.save(tmp_path / "twice")
    np.testing.assert_allclose(
        SentenceEncoder.load(tmp_path / "twice").encode(LINES), twice.encode(LINES), atol=1e-6
    )


def test_token_weights_come_back(bert_folder, tmp_path):
    weights = sif_weights(LINES, 1e-2, model=bert_folder)
    encoder = SentenceEncoder.load(bert_folder, pooling="sif", token_weights=weights)
    encoder = encoder.with_calibration(remove_components(encoder.moments(LINES), 1, center=False))
    encoder.save(tmp_path / "sif")
    np.testing.assert_array_equal(SentenceEncoder.load(tmp_path / "sif").encode(LINES), encoder.encode(LINES))
    np.testing.assert_array_equal(sif_weights(LINES, 1e-2, model=tmp_path / "sif"), weights)


def test_any_changed_byte_is_refused(folder):
    files = sorted(folder.iterdir())
    assert len(files) == 3
    for file in files:
        data = bytearray(file.read_bytes())
        for place in {0, len(data) - 1, *range(0, len(data), 1 + len(data) // 40)}:
            file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with pytest.raises(InputError, match="fitted"):
                SentenceEncoder.load(folder)
        file.write_bytes(data[: len(data) // 2])
        with pytest.raises(InputError, match="fitted"):
            SentenceEncoder.load(folder)
        file.write_bytes(data)
    SentenceEncoder.load(folder)


@pytest.mark.parametrize("missing", ["calibration.safetensors", "SHA256SUMS"])
def test_a_missing_file_is_named(folder, missing):
    (folder / missing).unlink()
    with pytest.raises(InputError, match=missing):
        SentenceEncoder.load(folder)


def test_a_newer_format_asks_for_a_newer_jaxvec(folder):
    meta = json.loads((folder / META).read_text())
    (folder / META).write_text(json.dumps(meta | {"format_version": 99}))
    with pytest.raises(InputError, match=r"format version 99.*Update jaxvec"):
        SentenceEncoder.load(folder)


def test_the_fit_says_layers_and_pooling(fitted, folder):
    for same in ({"layers": (1, 3)}, {"layers": "first_last"}, {"pooling": "mean"}, {"max_length": 20}):
        SentenceEncoder.load(folder, **same)
    for other in ({"layers": "last"}, {"layers": 2}, {"pooling": "cls"}, {"token_weights": np.ones(78)}):
        with pytest.raises(InputError, match=f"fitted with its own {next(iter(other))}.*leave"):
            SentenceEncoder.load(folder, **other)


def test_the_model_is_found_from_any_working_directory(bert_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(bert_folder.parent)
    encoder = SentenceEncoder.load(bert_folder.name)
    monkeypatch.chdir(tmp_path)  # between loading and saving
    encoder = encoder.with_calibration(whitening(encoder.moments(LINES), dim=2))
    encoder.save("fitted")
    monkeypatch.chdir("/")
    assert SentenceEncoder.load(tmp_path / "fitted").dim == 2


def test_the_model_may_lie_inside_the_folder_and_must_be_the_same(
    fitted, folder, bert_folder, write_bert, tmp_path
):
    meta = json.loads((folder / META).read_text())
    assert meta["model"] == str(bert_folder)
    shutil.copytree(bert_folder, folder / "model")
    np.testing.assert_array_equal(SentenceEncoder.load(folder).encode(LINES), fitted.encode(LINES))

    shutil.rmtree(folder / "model")
    write_bert(folder / "model", seed=1)
    with pytest.raises(InputError, match="weights or the tokenizer"):
        SentenceEncoder.load(folder)

    shutil.rmtree(folder / "model")
    shutil.copytree(bert_folder, folder / "model")
    tokenizer = json.loads((folder / "model/tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (folder / "model/tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(InputError, match="weights or the tokenizer"):
        SentenceEncoder.load(folder)


def test_the_fit_serves_both_dtypes(fitted, folder):
    rough = SentenceEncoder.load(folder, dtype="bfloat16")
    assert rough.fingerprint == fitted.fingerprint
    assert np.abs(rough.encode(LINES) - fitted.encode(LINES)).max() < 0.3


def test_an_encoder_without_calibration_has_nothing_to_save(bert_folder, tmp_path):
    with pytest.raises(InputError, match="no calibration to save"):
        SentenceEncoder.load(bert_folder).save(tmp_path / "plain")


def test_a_folder_with_something_in_it_is_left_alone(fitted, tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InputError, match=str(tmp_path)):
        fitted.save(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes"]


def test_a_save_that_fails_leaves_nothing(fitted, tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises((InputError, OSError), match="No space left"):
        fitted.save(tmp_path / "fitted")
    assert not list(tmp_path.iterdir())


def test_derived_encoders_share_the_weights_on_the_devices(fitted):
    others = [fitted.with_layers(2), fitted.with_calibration(whitening(fitted.moments(LINES), dim=2))]
    for other in others:
        other.encode(["it rains"])
        assert other.weights is fitted.weights
        assert other._placed[0]["encoder"] is fitted.weights.placed
