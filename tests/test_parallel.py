"""Several processes give what one gives; when one dies the others end, and what is finished is kept."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxvec import InputError, SentenceEncoder, Shards, encode_to, initialize, pipeline, resume

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo and signals are POSIX")

SETUP = """
import json, sys, time
import numpy as np
from jaxvec import SentenceEncoder, encode_to, initialize, pipeline, resume
from jaxvec.parallel import meet, merge_moments, share
pipeline.CHUNK = resume.CHUNK = 32
initialize()
folder, model, corpus = sys.argv[1:4]
encoder = SentenceEncoder.load(model)
texts = json.loads(open(corpus).read())
"""
BOTH = """
from jaxvec.snapshot import moments_to_go_on_with
encode_to(folder, encoder, texts, share=share())
moments = merge_moments(moments_to_go_on_with(folder + "-fit", encoder, texts, share=share()))
import jax
print(json.dumps([jax.device_count(), moments.count, moments.mean.tolist(), moments.covariance().tolist()]))
"""
SLOWLY = """
def slowly():
    for text in texts:
        time.sleep(0.02)
        yield text
encode_to(folder, encoder, slowly(), share=share())
meet("encoded")
"""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    for module in (pipeline, resume):
        monkeypatch.setattr(module, "CHUNK", 32)


def start(code: str, processes: int, devices: int, *arguments: object) -> list[subprocess.Popen]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": str(processes),
        "JAX_NUM_CPU_DEVICES": str(devices),
    }
    return [
        subprocess.Popen(
            [sys.executable, "-c", SETUP + code, *map(str, arguments)],
            env=os.environ | environment | {"JAX_PROCESS_ID": str(number)},
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]


@pytest.mark.parametrize(("processes", "devices"), [(2, 4), (3, 1)])
def test_several_processes_write_and_fit_what_one_does(tmp_path, bert_folder, texts, processes, devices):
    texts = texts[:165]  # five chunks and a bit: uneven for two and for three
    (tmp_path / "corpus.json").write_text(json.dumps(texts))
    encoder = SentenceEncoder.load(bert_folder)
    encode_to(tmp_path / "one", encoder, texts)
    running = start(BOTH, processes, devices, tmp_path / "many", bert_folder, tmp_path / "corpus.json")
    ends = [process.communicate(timeout=240) for process in running]
    assert [process.returncode for process in running] == [0] * processes, ends
    assert sorted(path.name for path in (tmp_path / "many").iterdir()) == sorted(
        path.name for path in (tmp_path / "one").iterdir()
    )
    for one, many in zip(Shards.open(tmp_path / "one"), Shards.open(tmp_path / "many"), strict=True):
        np.testing.assert_allclose(many, one, atol=1e-5)
    moments = encoder.moments(texts)
    results = [json.loads(out.splitlines()[-1]) for out, _ in ends]  # gloo prints, too
    assert all(result == results[0] for result in results)
    assert results[0][:2] == [processes * devices, 165]
    np.testing.assert_allclose(results[0][2], moments.mean, atol=1e-5)
    np.testing.assert_allclose(results[0][3], moments.covariance(), atol=1e-5)


@pytest.mark.parametrize("dies", [0, 1])
def test_a_process_that_dies_ends_the_others_and_a_rerun_goes_on(tmp_path, bert_folder, texts, dies):
    (tmp_path / "corpus.json").write_text(json.dumps(texts))
    running = start(SLOWLY, 2, 1, tmp_path / "folder", bert_folder, tmp_path / "corpus.json")
    while len(list((tmp_path / "folder").glob("part-*"))) < 2:
        assert all(process.poll() is None for process in running), [p.communicate() for p in running]
        time.sleep(0.05)
    running[dies].send_signal(signal.SIGKILL)
    died = time.monotonic()
    _, said = running[1 - dies].communicate(timeout=60)
    assert time.monotonic() - died < 60
    assert running[1 - dies].returncode != 0
    # Noticed by JAX's own watch or, while it waits for the others, by the barrier.
    assert any(words in said for words in ("another task died", "another process of this job died")), said
    running[dies].communicate()
    finished = encode_to(tmp_path / "folder", SentenceEncoder.load(bert_folder), texts)
    assert finished.complete
    assert finished.before >= 64


def test_a_job_that_nobody_described_is_refused(monkeypatch):
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="host:port"):
        initialize()
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    with pytest.raises(InputError, match="JAX_NUM_PROCESSES is 'two'"):
        initialize("127.0.0.1:1")
