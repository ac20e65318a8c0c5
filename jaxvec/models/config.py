"""The encoder's shape, read from a Hugging Face config.json (or Google's bert_config.json)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxvec.errors import InputError

MODEL_TYPES = ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert", "mpnet")
ACTIVATIONS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh")
_LIMITS = {"num_hidden_layers": 1 << 10, "num_hidden_groups": 1 << 10, "inner_group_num": 1 << 10}
_DISTILBERT_KEYS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """What an encoder of the BERT family needs to know about itself; hashable and free of arrays.

    Args:
        model_type: one of `MODEL_TYPES`.
        vocab_size: rows of the token table.
        hidden_size: width of a hidden state.
        embedding_size: width of the token table; differs from `hidden_size` in ALBERT and small ELECTRA.
        schedule: the stored block that each application uses, in order; 0, 1, 2, … but for ALBERT, which shares.
        num_blocks: transformer blocks stored.
        blocks_per_group: how ALBERT numbers its stored blocks; 1 elsewhere.
        num_heads: attention heads a block.
        intermediate_size: width inside the feed-forward network.
        activation: one of `ACTIVATIONS`.
        layer_norm_eps: added to the variance in every LayerNorm.
        position_rows: rows of the position table.
        position_offset: row of a sentence's first position (RoBERTa and MPNet keep the padding row below it).
        token_types: rows of the token-type table; 0 where the family has none.
        relative_buckets: rows of MPNet's relative-position table; 0 elsewhere.
        has_pooler: whether the checkpoint brings BERT's tanh layer over the first token.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    embedding_size: int
    schedule: tuple[int, ...]
    num_blocks: int
    blocks_per_group: int
    num_heads: int
    intermediate_size: int
    activation: str
    layer_norm_eps: float
    position_rows: int
    position_offset: int
    token_types: int
    relative_buckets: int
    has_pooler: bool = False

    @property
    def max_length(self) -> int:
        """Tokens that one sentence may have, special tokens included."""
        return self.position_rows - self.position_offset

    @property
    def projects_embeddings(self) -> bool:
        """ALBERT always maps the embedding to the hidden width, ELECTRA only where the widths differ."""
        return self.model_type == "albert" or self.embedding_size != self.hidden_size

    @property
    def num_layers(self) -> int:
        """Transformer blocks applied: hidden states are numbered 0 (embedding) to `num_layers`."""
        return len(self.schedule)


def read_config(folder: Path) -> EncoderConfig:
    """The configuration of the encoder stored in `folder`.

    Raises:
        InputError: no readable configuration, an unsupported `model_type` or an unsupported setting.
    """
    for name in ("config.json", "bert_config.json"):
        path = folder / name
        if path.is_file():
            break
    else:
        raise InputError(f"{folder}: no config.json (or bert_config.json) there; is it a model folder?")
    try:
        raw = json.loads(path.read_text("utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(raw, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(raw).__name__}")
    if name == "bert_config.json":
        raw = {"model_type": "bert", **raw}
    return parse_config(raw, str(path))


def parse_config(raw: dict[str, Any], source: str = "config") -> EncoderConfig:
    """The configuration that a Hugging Face dictionary describes; absent keys take transformers' defaults.

    >>> parse_config({"model_type": "roberta", "max_position_embeddings": 514}).max_length
    512
    """
    kind = raw.get("model_type")
    if kind not in MODEL_TYPES:
        raise InputError(
            f"{source}: model_type {kind!r} is not supported; supported: {', '.join(MODEL_TYPES)}"
        )
    keys = _DISTILBERT_KEYS if kind == "distilbert" else {}
    albert, mpnet = kind == "albert", kind == "mpnet"
    offset_family = kind in ("roberta", "xlm-roberta")

    def integer(key: str, default: int, least: int = 1) -> int:
        value = raw.get(keys.get(key, key))
        value = default if value is None else value
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not least <= value < _LIMITS.get(key, 1 << 31)
        ):
            raise InputError(
                f"{source}: {keys.get(key, key)} is {value!r}; expected an integer from {least} to {_LIMITS.get(key, 1 << 31) - 1}"
            )
        return value

    defaults = {  # transformers' defaults, for the few files that leave a key out
        "vocab_size": {"albert": 30000, "roberta": 50265, "xlm-roberta": 30522, "mpnet": 30527}.get(
            kind, 30522
        ),
        "hidden_size": {"albert": 4096, "electra": 256}.get(kind, 768),
        "num_hidden_layers": 6 if kind == "distilbert" else 12,
        "num_attention_heads": {"albert": 64, "electra": 4}.get(kind, 12),
        "intermediate_size": {"albert": 16384, "electra": 1024}.get(kind, 3072),
    }
    hidden = integer("hidden_size", defaults["hidden_size"])
    layers = integer("num_hidden_layers", defaults["num_hidden_layers"])
    heads = integer("num_attention_heads", defaults["num_attention_heads"])
    if hidden % heads:
        raise InputError(f"{source}: hidden size {hidden} is not a multiple of its {heads} attention heads")

    activation = raw.get(keys.get("hidden_act", "hidden_act")) or ("gelu_new" if albert else "gelu")
    if activation not in ACTIVATIONS:
        raise InputError(
            f"{source}: activation {activation!r} is not supported; supported: {', '.join(ACTIVATIONS)}"
        )
    if raw.get("position_embedding_type", "absolute") not in ("absolute", None):
        raise InputError(
            f"{source}: position_embedding_type {raw['position_embedding_type']!r} is not supported; only 'absolute'"
        )
    if raw.get("is_decoder"):
        raise InputError(
            f"{source}: is_decoder is set, but a sentence encoder needs attention in both directions"
        )

    eps = 1e-12 if kind == "distilbert" else raw.get("layer_norm_eps", 1e-12)
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 < eps < 1:
        raise InputError(f"{source}: layer_norm_eps is {eps!r}; expected a number between 0 and 1")
    groups = integer("num_hidden_groups", 1) if albert else layers
    inner = integer("inner_group_num", 1) if albert else 1
    # transformers divides floats: where that rounds below a whole number, the layer stays in the group before.
    schedule = tuple(int(i / (layers / groups)) * inner + j for i in range(layers) for j in range(inner))
    # RoBERTa's first position row follows its padding row; MPNet fixes that row at 1 whatever the config says.
    offset = 2 if mpnet else integer("pad_token_id", 1, least=0) + 1 if offset_family else 0
    buckets = integer("relative_attention_num_buckets", 32) if mpnet else 0
    if mpnet and buckets != 32:
        # transformers sizes the table by this number but always computes with 32 buckets.
        raise InputError(
            f"{source}: relative_attention_num_buckets is {buckets}; MPNet is defined for 32 only"
        )
    rows = integer("max_position_embeddings", 512)
    if rows <= offset:
        raise InputError(f"{source}: max_position_embeddings {rows} leaves no position above the padding row")
    return EncoderConfig(
        model_type=kind,
        vocab_size=integer("vocab_size", defaults["vocab_size"]),
        hidden_size=hidden,
        embedding_size=integer("embedding_size", 128) if kind in ("albert", "electra") else hidden,
        schedule=schedule,
        num_blocks=groups * inner,
        blocks_per_group=inner,
        num_heads=heads,
        intermediate_size=integer("intermediate_size", defaults["intermediate_size"]),
        activation=activation,
        layer_norm_eps=float(eps),
        position_rows=rows,
        position_offset=offset,
        token_types=0 if mpnet or kind == "distilbert" else integer("type_vocab_size", 2),
        relative_buckets=buckets,
    )
