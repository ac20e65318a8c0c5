"""The law of streams: no program that runs once a batch waits for another device."""

import json
import re

_STREAMS = """
import json, sys
import numpy as np
import jax
import jaxvec
from jaxvec.evaluation.encoding import EncodedTexts, make_choice
from jaxvec.search.cluster import k_means
from jaxvec.search.dedupe import near_duplicates

texts = json.loads(sys.argv[2])
encoder = jaxvec.SentenceEncoder.load(sys.argv[1])
vectors = encoder.encode(texts)
moments = encoder.moments(texts)
calibrated = encoder.with_calibration(jaxvec.whitening(moments, dim=8))
calibrated.encode(texts)
jaxvec.top_k(vectors[:3], vectors, 2, dtype="int8")
jaxvec.top_k(vectors[:3], vectors, 2)
list(near_duplicates(vectors, 0.9))
k_means(vectors, 3)
EncodedTexts(encoder, texts, [make_choice(encoder, layers=n) for n in (1, 2)])
print(jax.local_device_count())
"""
_TRAINING = """
import json, sys
import numpy as np
import jax
import jaxvec

vectors = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
jaxvec.Flow.fit(vectors, levels=1, depth=1, hidden=4, epochs=1, batch_size=24)
print(jax.local_device_count())
"""
_COLLECTIVE = re.compile(
    r"\b(all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast)(-start)?\("
)


def _programs_with_a_collective(run_python, tmp_path, code: str, *arguments: object) -> tuple[int, set[str]]:
    """How many programs the code compiled on three devices, and the names of those that hold a collective."""
    flags = f"--xla_force_host_platform_device_count=3 --xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    assert run_python(code, *arguments, XLA_FLAGS=flags) == 3
    programs = list(tmp_path.glob("*after_optimizations.txt"))
    return len(programs), {p.name.split(".")[1] for p in programs if _COLLECTIVE.search(p.read_text())}


def test_no_program_of_a_stream_holds_a_collective(run_python, tmp_path, bert_folder, texts):
    count, holding = _programs_with_a_collective(
        run_python, tmp_path, _STREAMS, bert_folder, json.dumps(texts)
    )
    assert count > 10
    assert holding == set()


def test_a_step_of_training_holds_one_and_is_so_found(run_python, tmp_path):
    _, holding = _programs_with_a_collective(run_python, tmp_path, _TRAINING)
    assert holding == {"jit__train_round"}
