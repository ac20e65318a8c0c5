"""Configurations: transformers' own defaults, every setting that is refused, and files that are damaged."""

import json

import pytest

from jaxvec.errors import InputError
from jaxvec.models.config import MODEL_TYPES, parse_config, read_config


@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_absent_keys_take_the_defaults_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoConfig.for_model(kind)
    config = parse_config({"model_type": kind})
    assert config == parse_config(reference.to_dict())
    assert config.num_heads == reference.num_attention_heads
    assert config.hidden_size == reference.hidden_size
    assert config.num_layers == reference.num_hidden_layers
    assert config.vocab_size == reference.vocab_size
    assert config.position_rows == reference.max_position_embeddings


@pytest.mark.parametrize(("layers", "groups"), [(12, 1), (12, 5), (18, 14), (36, 28), (3, 3), (2, 5)])
def test_albert_layers_share_groups_as_in_transformers(layers, groups):
    """18 layers in 14 groups: transformers' float division puts layer 9 into group 6, exact division into 7."""
    config = parse_config(
        {
            "model_type": "albert",
            "num_hidden_layers": layers,
            "num_hidden_groups": groups,
            "inner_group_num": 2,
        }
    )
    expected = [int(i / (layers / groups)) for i in range(layers)]
    assert config.schedule == tuple(2 * group + inner for group in expected for inner in range(2))
    assert (config.num_layers, config.num_blocks) == (2 * layers, 2 * groups)


@pytest.mark.parametrize(
    ("kind", "pad", "expected"),
    [("bert", 5, 512), ("roberta", 1, 510), ("roberta", 0, 511), ("xlm-roberta", 3, 508), ("mpnet", 0, 510)],
)
def test_positions_start_after_the_padding_row_where_the_family_has_one(kind, pad, expected):
    config = parse_config({"model_type": kind, "pad_token_id": pad, "max_position_embeddings": 512})
    assert config.max_length == expected


@pytest.mark.parametrize("kind", [None, "t5", "gpt2", "deberta-v2", ["bert"], 3])
def test_an_unsupported_family_is_named_beside_those_supported(kind):
    with pytest.raises(InputError) as error:
        parse_config({"model_type": kind}, "some/config.json")
    assert all(name in str(error.value) for name in ("some/config.json", repr(kind), *MODEL_TYPES))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"is_decoder": True}, "is_decoder"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"hidden_act": "quick_gelu"}, "activation 'quick_gelu' is not supported; supported: gelu"),
        ({"hidden_act": ["gelu"]}, "activation"),
        ({"hidden_size": 10, "num_attention_heads": 3}, "10 is not a multiple of its 3 attention heads"),
        ({"hidden_size": "768"}, "hidden_size is '768'; expected an integer"),
        ({"hidden_size": 768.0}, r"hidden_size is 768\.0"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"layer_norm_eps": 0}, "layer_norm_eps is 0"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps is nan"),
        ({"layer_norm_eps": float("inf")}, "layer_norm_eps is inf"),
        ({"layer_norm_eps": "1e-12"}, "layer_norm_eps is '1e-12'"),
        ({"model_type": "roberta", "max_position_embeddings": 2}, "max_position_embeddings 2 leaves no"),
        ({"model_type": "mpnet", "relative_attention_num_buckets": 64}, "buckets is 64; .* 32 only"),
        ({"model_type": "distilbert", "n_heads": 7}, "768 is not a multiple of its 7"),
        ({"model_type": "distilbert", "dim": None, "n_layers": "6"}, "n_layers is '6'"),
    ],
)
def test_settings_that_do_not_fit_are_named_with_the_file(settings, message):
    with pytest.raises(InputError, match=f"a/config.json: .*{message}"):
        parse_config({"model_type": "bert", **settings}, "a/config.json")


def test_bert_config_json_of_google_needs_no_model_type_and_config_json_goes_first(tmp_path):
    google = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    (tmp_path / "bert_config.json").write_text(json.dumps(google))
    assert read_config(tmp_path).hidden_size == 8
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "electra"}))
    assert read_config(tmp_path).model_type == "electra"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"model_type": "bert"', "not readable as JSON"),
        (b"\xff\xfe", "not readable as JSON"),
        (b"", "not readable as JSON"),
        (b"[1]", "expected a JSON object, found list"),
        (b"null", "expected a JSON object, found NoneType"),
        (b"[" * 100_000, "not readable as JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "not readable as JSON"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, message):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=rf"config\.json: {message}"):
        read_config(tmp_path)


def test_a_folder_without_a_configuration_is_named(tmp_path):
    with pytest.raises(InputError, match=rf"{tmp_path}: no config\.json"):
        read_config(tmp_path)
