"""An exported folder gives the encoder's own vectors in sentence-transformers, and in jaxvec again."""

import json
import os
import shutil

import numpy as np
import pytest

from jaxvec.calibration.affine import whitening
from jaxvec.calibration.affine_map import Affine
from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.interchange.sentence_transformers_export import export_sentence_transformers

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
SentenceTransformer = pytest.importorskip("sentence_transformers").SentenceTransformer

VOCABULARY = """[CLS] [PAD] [SEP] [UNK] [MASK] a man plays the guitar it rains stock ##s fell dog bark ##ed .
in Paris"""
TEXTS = ["a man plays the guitar.", "It rains", "", "stocks fell. a dog barked in Paris. " * 3, "PARIS"]
SIZES = {
    "vocab_size": 24,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 48,
    "embedding_size": 16,
    "pad_token_id": 1,
}
DISTILBERT = ("vocab_size", "dim", "n_layers", "n_heads", "hidden_dim", "max_position_embeddings")
FAMILIES = ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert", "mpnet")


def save_model(folder, kind="bert", head="AutoModel", **settings):
    """A random model of the family, as transformers saves it, beside a lower-casing WordPiece tokenizer."""
    sizes = SIZES | settings
    if kind == "distilbert":
        sizes = dict(zip(DISTILBERT, sizes.values(), strict=False)) | {"pad_token_id": 1}
    elif kind not in ("albert", "electra"):
        sizes.pop("embedding_size")
    torch.manual_seed(0)
    model = getattr(transformers, head).from_config(transformers.AutoConfig.for_model(kind, **sizes))
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.normal_(1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0, 0.3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY.split()))
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"))
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "pad", "sep", "unk", "mask")}
    kept = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(kept))
    return folder


def calibrated(encoder):
    draw = np.random.default_rng(0)
    kernel = draw.normal(size=(encoder.dim, 6)) / encoder.dim**0.5
    step = Affine.from_arrays(draw.normal(size=encoder.dim), kernel, draw.normal(size=6))
    return encoder.with_calibration(step, {"corpus": "news"})


def elsewhere(folder):
    return SentenceTransformer(str(folder), device="cpu")


def kinds(folder):
    return [module["type"].rsplit(".", 1)[-1] for module in json.loads((folder / "modules.json").read_text())]


def check(encoder, folder, normalize=None, atol=1e-5):
    export_sentence_transformers(encoder, folder, normalize)
    expected = encoder.encode(TEXTS, normalize=normalize)
    np.testing.assert_allclose(elsewhere(folder).encode(TEXTS), expected, atol=atol)
    back = SentenceEncoder.load(folder)
    np.testing.assert_allclose(back.encode(TEXTS), expected, atol=atol)
    assert (back.pooling, back.max_length) == (encoder.pooling, encoder.max_length)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_gives_the_same_vectors(kind, tmp_path):
    encoder = SentenceEncoder.load(save_model(tmp_path / "model", kind), layers=1)
    check(calibrated(encoder), tmp_path / "lower")
    settings = json.loads((tmp_path / "lower/config.json").read_text())
    assert settings["n_layers" if kind == "distilbert" else "num_hidden_layers"] == 1
    check(encoder.with_layers((0, 1)), tmp_path / "average")


@pytest.mark.parametrize(
    ("layers", "pooling"),
    [((2,), "cls"), ((2,), "max"), ((0,), "mean"), ((1, 2), "cls"), ((1, 1, 2), "max")],
)
def test_layers_and_poolings_become_modules(layers, pooling, tmp_path):
    encoder = SentenceEncoder.load(save_model(tmp_path / "model"), pooling=pooling, layers=layers)
    check(calibrated(encoder), tmp_path / "exported", normalize=True)
    middle = ["WeightedLayerPooling"] if len(layers) > 1 or layers == (0,) else []
    assert kinds(tmp_path / "exported") == ["Transformer", *middle, "Pooling", "Dense", "Normalize"]


def test_unequal_layer_weights_and_misplaced_modules_are_refused(tmp_path):
    from safetensors.numpy import save_file

    folder = tmp_path / "exported"
    encoder = SentenceEncoder.load(save_model(tmp_path / "model"), layers=(1, 2))
    export_sentence_transformers(encoder, folder)
    assert SentenceEncoder.load(folder).layers == (1, 2)
    assert SentenceEncoder.load(folder, layers=(0, 2)).layers == (0, 2)
    weights = folder / "1_WeightedLayerPooling/model.safetensors"
    for wrong in ([1.0, 0.7], [0.0, 0.0], [1.0, -1.0]):
        save_file({"layer_weights": np.array(wrong, np.float32)}, weights)
        with pytest.raises(InputError, match="layer_weights are"):
            SentenceEncoder.load(folder)
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([modules[0], modules[2], modules[1]]))
    with pytest.raises(InputError, match="modules are Transformer → Pooling → WeightedLayerPooling"):
        SentenceEncoder.load(folder)


def test_an_albert_whose_groups_depend_on_its_depth_is_kept_whole(tmp_path):
    model = save_model(tmp_path / "model", "albert", num_hidden_groups=2)
    for layers in ((1,), (1, 2)):
        check(SentenceEncoder.load(model, layers=layers), tmp_path / str(layers))
    inner = save_model(tmp_path / "inner", "albert", num_hidden_layers=1, inner_group_num=2)
    check(SentenceEncoder.load(inner), tmp_path / "whole")
    with pytest.raises(InputError, match="blocks a group"):
        export_sentence_transformers(SentenceEncoder.load(inner, layers=1), tmp_path / "part")


def test_a_tokenizer_of_vocab_txt_alone_travels(tmp_path):
    model = save_model(tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    check(SentenceEncoder.load(model), tmp_path / "exported")


def test_a_pickled_checkpoint_with_a_training_head_becomes_clean_safetensors(tmp_path):
    model = save_model(tmp_path / "model", head="AutoModelForMaskedLM")
    state = transformers.AutoModelForMaskedLM.from_pretrained(model).half().state_dict()
    torch.save(state, model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    check(SentenceEncoder.load(model), tmp_path / "exported")
    plain, info = transformers.AutoModel.from_pretrained(
        tmp_path / "exported", output_loading_info=True, add_pooling_layer=False
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert plain.dtype == torch.float32


def test_length_limit_and_lower_casing_travel(tmp_path):
    model = save_model(tmp_path / "model")
    cased = json.loads((model / "tokenizer.json").read_text())
    cased["normalizer"]["lowercase"] = False
    (model / "tokenizer.json").write_text(json.dumps(cased))
    (model / "sentence_bert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": true}')
    export_sentence_transformers(SentenceEncoder.load(model), tmp_path / "plain")
    assert not (tmp_path / "plain/sentence_bert_config.json").samefile(model / "sentence_bert_config.json")
    modules = [{"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    modules += [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    whole = tmp_path / "whole"
    whole.mkdir()
    shutil.copytree(model, whole / "0_Transformer")
    shutil.copytree(tmp_path / "plain/1_Pooling", whole / "1_Pooling")
    (whole / "modules.json").write_text(json.dumps(modules))
    encoder = SentenceEncoder.load(whole)
    assert (encoder.max_length, encoder.tokenizer.lower_case) == (9, True)
    short = ["A Man plays", "PARIS"]
    export_sentence_transformers(encoder, tmp_path / "exported")
    np.testing.assert_allclose(
        elsewhere(tmp_path / "exported").encode(short), encoder.encode(short), atol=1e-5
    )
    long = ["a man plays the guitar . a dog fell . it rains"]
    with pytest.warns(UserWarning, match="cut to 9 tokens"):
        expected = encoder.encode(long)
    np.testing.assert_allclose(elsewhere(tmp_path / "exported").encode(long), expected, atol=1e-5)
    assert SentenceEncoder.load(tmp_path / "exported").max_length == 9


def test_a_bfloat16_encoder_exports_every_bit_of_its_weights(tmp_path):
    model = save_model(tmp_path / "model")
    halved, whole = SentenceEncoder.load(model, dtype="bfloat16"), SentenceEncoder.load(model)
    export_sentence_transformers(halved, tmp_path / "exported")
    assert SentenceEncoder.load(tmp_path / "exported").fingerprint == whole.fingerprint
    card = (tmp_path / "exported/README.md").read_text()
    assert "bfloat16's rounding" in card
    expected = whole.encode(TEXTS)
    np.testing.assert_allclose(elsewhere(tmp_path / "exported").encode(TEXTS), expected, atol=1e-5)
    assert np.abs(halved.encode(TEXTS) - expected).max() > 1e-4


def test_normalize_follows_the_encoder_unless_said(tmp_path):
    encoder = SentenceEncoder.load(save_model(tmp_path / "model"))
    export_sentence_transformers(encoder, tmp_path / "unit", normalize=True)
    again = SentenceEncoder.load(tmp_path / "unit")
    check(again, tmp_path / "follows")
    check(again, tmp_path / "plain", normalize=False)
    assert kinds(tmp_path / "follows")[-1] == "Normalize"
    assert kinds(tmp_path / "plain")[-1] == "Pooling"


def test_the_card_says_where_the_vectors_come_from(tmp_path):
    encoder = calibrated(SentenceEncoder.load(save_model(tmp_path / "model"), layers=1))
    export_sentence_transformers(encoder, tmp_path / "exported")
    card = (tmp_path / "exported/README.md").read_text()
    origin = json.loads(card.split("```json")[1].split("```")[0])
    assert origin["model"] == str(tmp_path / "model")
    assert (origin["layers"], origin["calibration"]["corpus"]) == ([1], "news")
    assert "first 1 of its 2 layers" in card
    assert "bfloat16" not in card


def test_files_are_as_readable_as_the_umask_says(tmp_path):
    encoder = calibrated(SentenceEncoder.load(save_model(tmp_path / "model")))
    before = os.umask(0o027)
    try:
        export_sentence_transformers(encoder, tmp_path / "exported")
    finally:
        os.umask(before)
    paths = [tmp_path / "exported", *(tmp_path / "exported").rglob("*")]
    modes = (
        {path.stat().st_mode & 0o777 for path in paths if path.is_file()},
        {path.stat().st_mode & 0o777 for path in paths if path.is_dir()},
    )
    # Copies of the model's own files included, whatever their modes.
    assert modes == ({0o640}, {0o750})


def test_what_cannot_be_expressed_is_refused_and_leaves_nothing(tmp_path):
    model = save_model(tmp_path / "model")
    weights = np.ones(SIZES["vocab_size"], np.float32)
    for options in ({"pooling": "pooler"}, {"pooling": "sif", "token_weights": weights}):
        with pytest.raises(InputError, match="cls, mean, max"):
            export_sentence_transformers(SentenceEncoder.load(model, **options), tmp_path / "exported")
    encoder = SentenceEncoder.load(model)
    with pytest.raises(InputError, match="not empty"):
        export_sentence_transformers(encoder, model)
    torch.manual_seed(1)
    transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(model)).save_pretrained(model)
    with pytest.raises(InputError, match="changed"):
        export_sentence_transformers(encoder, tmp_path / "exported")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_whitened_real_encoder_stays_within_float32(tmp_path):
    subjects = (
        "A man",
        "The old dog",
        "Our bank",
        "Nobody",
        "The train to Paris",
        "A child",
        "Rain",
        "My sister",
    )
    verbs = ("plays the guitar", "sleeps", "fell by three percent", "is late again", "likes the sea", "won")
    texts = [f"{subject} {verb}." for subject in subjects for verb in verbs]
    texts.append(
        "The train to Paris is late again. " * 25
    )  # beyond the 128 tokens in the file of its tokenizer
    encoder = SentenceEncoder.load()
    white = encoder.with_calibration(whitening(encoder.moments(texts), dim=32))
    export_sentence_transformers(white, tmp_path / "exported")
    expected = white.encode(texts)
    assert np.abs(np.cov(expected.T) - np.eye(32)).max() < 1e-3
    np.testing.assert_allclose(elsewhere(tmp_path / "exported").encode(texts), expected, atol=1e-4)
    np.testing.assert_allclose(SentenceEncoder.load(tmp_path / "exported").encode(texts), expected, atol=1e-4)
