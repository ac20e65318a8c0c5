"""sentence-transformers folders, old and new: what modules.json says is what encode does, or it is refused by name."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from jaxvec.calibration.affine_map import Affine
from jaxvec.encoder import SentenceEncoder
from jaxvec.errors import InputError
from jaxvec.interchange.sentence_transformers import read_dense, read_modules
from jaxvec.models.sources import BUNDLED, find_model

torch = pytest.importorskip("torch", reason="torch, on which sentence-transformers runs, is not installed")
st = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")

TEXTS = [
    "A man plays the guitar.",
    "",
    "Zwei Hunde laufen über die Wiese, ein dritter sieht zu.",
    "THE WEATHER IS NICE today!",
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen " * 3,
    "人工智能 😀 e\u0301",
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A BERT of 16 dimensions over single characters, upper-case ones too."""
    import transformers

    folder = tmp_path_factory.mktemp("tiny")
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzüß.,!"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(tokens))
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(
        vocab_size=len(tokens), max_position_embeddings=64, initializer_range=0.4, **sizes
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"), do_lower_case=False)
    tokenizer.save_pretrained(folder)
    return folder


def save(tiny: Path, folder: Path, *after, **transformer) -> Path:
    """Written by the installed sentence-transformers."""
    from sentence_transformers.base.modules import Transformer

    st.SentenceTransformer(modules=[Transformer(str(tiny), **transformer), *after], device="cpu").save(
        str(folder)
    )
    return folder


def pooling(mode: str = "mean"):
    from sentence_transformers.sentence_transformer.modules import Pooling

    return Pooling(16, pooling_mode=mode)


def old_folder(tiny: Path, folder: Path, kinds: list[str], pooling_mode: str, **transformer) -> Path:
    """In the layout of sentence-transformers 0.4: every module in a folder, pooling as a row of switches."""
    shutil.copytree(tiny, folder / "0_Transformer")
    (folder / "0_Transformer" / "sentence_bert_config.json").write_text(json.dumps(transformer))
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    switches = {f"pooling_mode_{mode}": mode == pooling_mode for mode in modes}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 16, **switches})
    )
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def edit(path: Path, **changes):
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(settings | changes))


def assert_encodes_as_the_reference(folder: Path):
    expected = st.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    vectors = SentenceEncoder.load(folder).encode(TEXTS)
    assert vectors.shape == expected.shape
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


cuts = pytest.mark.filterwarnings("ignore:.* sentences were cut to:UserWarning")


def test_the_bundled_model_encodes_as_the_reference():
    assert_encodes_as_the_reference(find_model(BUNDLED))


@cuts
@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
def test_what_sentence_transformers_saves_encodes_as_it_does(tiny, tmp_path, mode):
    folder = save(tiny, tmp_path / "saved", pooling(mode), max_seq_length=30)
    assert read_modules(folder).pooling == mode
    assert read_modules(folder).max_length == SentenceEncoder.load(folder).max_length == 30
    assert_encodes_as_the_reference(folder)


@cuts
def test_dense_and_normalize_modules_are_followed(tiny, tmp_path):
    from sentence_transformers.base.modules import Dense, Normalize

    torch.manual_seed(1)
    dense = [
        Dense(16, 12, activation_function=torch.nn.Identity()),
        Dense(12, 5, bias=False, activation_function=None),
    ]
    folder = save(tiny, tmp_path / "saved", pooling(), *dense, Normalize())
    assert SentenceEncoder.load(folder).dim == 5
    assert_encodes_as_the_reference(folder)


@cuts
@pytest.mark.parametrize("mode", ["cls_token", "mean_tokens", "max_tokens"])
def test_old_folders_encode_as_the_reference(tiny, tmp_path, mode):
    kinds = ["Transformer", "Pooling", "Normalize"]
    folder = old_folder(tiny, tmp_path / "old", kinds, mode, max_seq_length=20, do_lower_case=True)
    modules = read_modules(folder)
    assert (modules.pooling, modules.max_length, modules.lower_case) == (mode.partition("_")[0], 20, True)
    assert modules.normalize
    assert_encodes_as_the_reference(folder)


def test_lower_casing_is_done_only_where_the_folder_asks(tiny, tmp_path):
    for lower_case in (False, True):
        folder = old_folder(
            tiny,
            tmp_path / str(lower_case),
            ["Transformer", "Pooling"],
            "mean_tokens",
            do_lower_case=lower_case,
        )
        ids = SentenceEncoder.load(folder).tokenizer(["ABC def", "abc DEF"]).values.reshape(2, -1)
        assert np.array_equal(*ids) == lower_case


def test_normalize_belongs_to_the_folders_own_pooling_and_layers(tiny, tmp_path):
    folder = old_folder(tiny, tmp_path / "old", ["Transformer", "Pooling", "Normalize"], "mean_tokens")
    texts = ["a man plays", "two dogs run", "it rains"]
    own = SentenceEncoder.load(folder)
    unit, raw = own.encode(texts), own.encode(texts, normalize=False)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert (np.abs(lengths - 1) > 0.1).all()
    np.testing.assert_allclose(unit, raw / lengths, rtol=0, atol=1e-6)

    assert SentenceEncoder.load(folder, pooling="mean", layers=(-1,)).normalizes
    calibrated = own.with_calibration(Affine.from_arrays(raw.mean(0), np.diag(1 / raw.std(0))))
    for other in (
        SentenceEncoder.load(folder, pooling="cls"),
        SentenceEncoder.load(folder, layers="first_last"),
        own.with_layers("first_last"),
        calibrated,
    ):
        assert not other.normalizes
    # Fitted on, and applied to, vectors that are not normalised.
    np.testing.assert_allclose(calibrated.encode(texts), calibrated.calibration(raw), rtol=0, atol=1e-5)


def test_a_folder_without_modules_pools_the_mean_and_does_not_normalise(tiny):
    modules = read_modules(tiny)
    assert (modules.encoder, modules.pooling, modules.max_length, modules.normalize) == (
        tiny,
        None,
        None,
        False,
    )
    encoder = SentenceEncoder.load(tiny)
    assert (encoder.pooling, encoder.normalizes, encoder.max_length) == ("mean", False, 64)


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"]
)
def test_the_length_is_read_under_every_name_that_was_in_use(tiny, tmp_path, family):
    folder = old_folder(tiny, tmp_path / "old", ["Transformer", "Pooling"], "mean_tokens")
    (folder / "0_Transformer" / "sentence_bert_config.json").unlink()
    edit(folder / "0_Transformer" / f"sentence_{family}_config.json", max_seq_length=17)
    assert read_modules(folder).max_length == 17


@pytest.mark.parametrize(("limit", "expected"), [(33, 33), (int(1e30), None), (1e30, None), (None, None)])
def test_without_it_the_length_is_that_of_the_tokenizer(tiny, tmp_path, limit, expected):
    folder = old_folder(tiny, tmp_path / "old", ["Transformer", "Pooling"], "mean_tokens")
    edit(folder / "0_Transformer" / "tokenizer_config.json", model_max_length=limit)
    assert read_modules(folder).max_length == expected
    edit(folder / "0_Transformer" / "sentence_bert_config.json", max_seq_length=12)
    assert read_modules(folder).max_length == 12


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (
            ["Transformer", "Pooling", "WordWeights"],
            r"'sentence_transformers\.models\.WordWeights' is not supported",
        ),
        (
            ["CLIPModel"],
            r"models\.CLIPModel' is not supported; jaxvec reads Transformer, Pooling, Dense, Normalize",
        ),
        (["Transformer"], "modules are Transformer; expected Transformer → Pooling"),
        (["Pooling", "Transformer"], "modules are Pooling → Transformer; expected"),
        (["Transformer", "Pooling", "Normalize", "Dense"], "Normalize → Dense; expected"),
        ([], "modules are ; expected"),
    ],
)
def test_unknown_modules_and_orders_are_refused_by_name(tiny, tmp_path, kinds, message):
    folder = old_folder(tiny, tmp_path / "old", kinds, "mean_tokens")
    with pytest.raises(InputError, match=rf"modules\.json: .*{message}"):
        SentenceEncoder.load(folder)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"pooling_mode": ["cls", "mean"]}, r"cls \+ mean"),
        ({"pooling_mode": "lasttoken"}, "lasttoken"),
        ({"pooling_mode": 3}, "3"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, r"cls \+ max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "pooling_mode_mean_sqrt_len_tokens"),
        ({"pooling_mode_mean_tokens": False}, "none"),
    ],
)
def test_pooling_other_than_one_known_mode_is_refused(tiny, tmp_path, settings, named):
    folder = old_folder(tiny, tmp_path / "old", ["Transformer", "Pooling"], "nothing")
    edit(folder / "1_Pooling" / "config.json", **settings)
    with pytest.raises(InputError, match=f"pooling {named} is not supported; one of cls, mean, max is"):
        SentenceEncoder.load(folder)


def test_what_would_change_the_vectors_unseen_is_refused(tiny, tmp_path):
    """A default prompt, an activation and a residual connection."""
    folder = old_folder(tiny, tmp_path / "old", ["Transformer", "Pooling", "Dense"], "mean_tokens")
    settings = folder / "config_sentence_transformers.json"
    edit(settings, prompts={"query": "query: ", "document": ""}, default_prompt_name="query")
    with pytest.raises(InputError, match="should begin with the prompt 'query: '"):
        read_modules(folder)
    for harmless in ("document", None):
        edit(settings, default_prompt_name=harmless)
        assert read_modules(folder).dense == (folder / "2_Dense",)
    (folder / "2_Dense").mkdir()
    dense = folder / "2_Dense" / "config.json"
    for config, message in (
        ({}, "activation Tanh is not supported"),
        ({"activation_function": "torch.nn.modules.activation.GELU"}, "activation GELU is not supported"),
        ({"activation_function": "torch.nn.modules.linear.Identity", "use_residual": True}, "residual"),
    ):
        dense.write_text(json.dumps(config))
        with pytest.raises(InputError, match=f"2_Dense: .*{message}"):
            read_dense([folder / "2_Dense"], 16)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", "{", "not readable as JSON"),
        ("modules.json", "[" * 100_000, "not readable as JSON"),
        ("modules.json", "{}", "expected a list of modules, found dict"),
        ("modules.json", '["Transformer"]', "expected a list of modules, each with a type and a path"),
        ("modules.json", '[{"type": "Transformer", "path": 0}]', "each with a type and a path"),
        ("1_Pooling/config.json", "[]", "expected a JSON object, found list"),
        ("0_Transformer/sentence_bert_config.json", "null", "expected a JSON object, found NoneType"),
        ("0_Transformer/sentence_bert_config.json", '{"max_seq_length": "128"}', "max_seq_length is '128'"),
        ("0_Transformer/sentence_bert_config.json", '{"max_seq_length": 0}', "max_seq_length is 0; expected"),
        (
            "0_Transformer/tokenizer_config.json",
            '{"model_max_length": -1}',
            "model_max_length is -1; expected",
        ),
        ("config_sentence_transformers.json", "[]", "expected a JSON object, found list"),
    ],
)
def test_a_damaged_file_is_named(tiny, tmp_path, file, content, message):
    folder = old_folder(tiny, tmp_path / "old", ["Transformer", "Pooling"], "mean_tokens")
    (folder / file).write_text(content)
    with pytest.raises(InputError, match=f"{file}: .*{message}"):
        read_modules(folder)


def test_a_missing_pooling_file_is_named(tiny, tmp_path):
    folder = old_folder(tiny, tmp_path / "old", ["Transformer", "Pooling"], "mean_tokens")
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(InputError, match=r"1_Pooling/config\.json: missing, though modules\.json names"):
        read_modules(folder)
