"""What a user would pick instead of jaxvec, each set up as fast as it goes: text → float32 vectors [n, dim].

Every function takes a model folder and a scratch folder and returns `encode(texts)`. The exported graphs hold the mean
pooling; their texts are tokenised at once and sorted by tokens, so that batches hold little padding.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Encode = Callable[[list[str]], np.ndarray]
CORES = os.cpu_count() or 1
BATCH = 32


def jaxvec_encoder(dtype: str) -> Callable[[Path, Path], Encode]:
    def make(folder: Path, scratch: Path) -> Encode:
        from jaxvec import SentenceEncoder

        encoder = SentenceEncoder.load(folder, dtype=dtype, pooling="mean", max_length=512)
        return lambda texts: encoder.encode(texts, normalize=False)

    return make


def sentence_transformers(dtype: str) -> Callable[[Path, Path], Encode]:
    def make(folder: Path, scratch: Path) -> Encode:
        import torch
        from sentence_transformers import SentenceTransformer, models

        words = models.Transformer(str(folder), max_seq_length=512)
        pooling = models.Pooling(words.get_word_embedding_dimension(), pooling_mode="mean")
        model = SentenceTransformer(modules=[words, pooling]).to(getattr(torch, dtype))

        def encode(texts: list[str]) -> np.ndarray:
            return model.encode(texts, convert_to_tensor=True, show_progress_bar=False).float().cpu().numpy()

        return encode

    return make


def onnx_runtime(int8: bool) -> Callable[[Path, Path], Encode]:
    def make(folder: Path, scratch: Path) -> Encode:
        import onnxruntime

        graph = export_onnx(folder, scratch)
        if int8:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            smaller = scratch / "int8.onnx"
            if not smaller.exists():
                quantize_dynamic(graph, smaller, weight_type=QuantType.QInt8)
            graph = smaller
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = CORES
        session = onnxruntime.InferenceSession(str(graph), options, ["CPUExecutionProvider"])
        return _sorted_batches(folder, lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0])

    return make


def openvino(folder: Path, scratch: Path) -> Encode:
    import openvino

    hints = {"INFERENCE_PRECISION_HINT": "bf16", "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(str(export_onnx(folder, scratch)), "CPU", hints)
    return _sorted_batches(folder, lambda ids, mask: compiled({"ids": ids, "mask": mask})[0])


SYSTEMS: dict[str, Callable[[Path, Path], Encode]] = {
    "jaxvec float32": jaxvec_encoder("float32"),
    "jaxvec bfloat16": jaxvec_encoder("bfloat16"),
    "sentence-transformers float32": sentence_transformers("float32"),
    "sentence-transformers bfloat16": sentence_transformers("bfloat16"),
    "ONNX Runtime float32": onnx_runtime(int8=False),
    "ONNX Runtime int8": onnx_runtime(int8=True),
    "OpenVINO bfloat16": openvino,
}


def export_onnx(folder: Path, scratch: Path) -> Path:
    """The model with mean pooling as one ONNX graph: int64 ids and mask [batch, length] → vectors."""
    path = scratch / "float32.onnx"
    if path.exists():
        return path
    import torch
    from transformers import AutoModel

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

        def forward(self, ids: Any, mask: Any) -> Any:
            states = self.words(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask[..., None].float()
            return (states * weights).sum(1) / weights.sum(1)

    example = torch.ones(2, 16, dtype=torch.int64)
    axes = {"ids": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "length"}, "vectors": {0: "batch"}}
    with torch.no_grad():
        torch.onnx.export(
            Pooled(),
            (example, example),
            path,
            input_names=["ids", "mask"],
            output_names=["vectors"],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )
    return path


def _sorted_batches(folder: Path, run: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Encode:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(512)

    def encode(texts: list[str]) -> np.ndarray:
        ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
        order = np.argsort([len(row) for row in ids], kind="stable")
        vectors: Any = None
        for start in range(0, len(order), BATCH):
            members = order[start : start + BATCH]
            longest = len(ids[members[-1]])
            batch, mask = np.zeros((2, len(members), longest), np.int64)
            for row, member in enumerate(members):
                batch[row, : len(ids[member])] = ids[member]
                mask[row, : len(ids[member])] = 1
            found = run(batch, mask)
            vectors = np.empty((len(ids), found.shape[1]), np.float32) if vectors is None else vectors
            vectors[members] = found
        return vectors

    return encode
