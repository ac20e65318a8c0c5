"""After `jaxvec warmup` a fresh process compiles none of the encoder's programs: it reads them from the cache."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxvec import SentenceEncoder, cli
from jaxvec.packing import common_shapes


def jaxvec(*arguments, **environment):
    command = [sys.executable, "-W", "error", "-m", "jaxvec.cli", *map(str, arguments)]
    root = Path(__file__).parents[1]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1"} | environment
    finished = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_a_warm_cache_holds_the_programs(tmp_path, bert_folder):
    (tmp_path / "corpus.txt").write_text("the man plays\nit rains\n" * 50)
    cache = tmp_path / "cache"
    options = ("--batch-tokens", 256, "--json")
    report = json.loads(jaxvec("--compile-cache", cache, "warmup", bert_folder, *options))
    assert [tuple(shape) for shape in report["shapes"]] == common_shapes(96, 256)
    kept = {path.name for path in cache.iterdir()}
    assert len([name for name in kept if name.startswith("jit_apply")]) == len(report["shapes"])
    output = ("-o", tmp_path / "v.npy", "--model", bert_folder, *options)
    everything = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    jaxvec("encode", tmp_path / "corpus.txt", *output, **everything)
    assert {name for name in os.listdir(cache) if name.startswith("jit_apply")} <= kept
    vectors = SentenceEncoder.load(bert_folder).encode(["the man plays", "it rains"] * 50)
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors, atol=1e-5)


def test_warmup_without_a_cache_says_how_to_get_one(bert_folder, monkeypatch, capsys):
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["jaxvec", "warmup", str(bert_folder)])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert "--compile-cache FOLDER" in capsys.readouterr().err


def test_a_cache_that_keeps_nothing_is_no_success(tmp_path, bert_folder):
    (tmp_path / "cache").write_text("a file")
    command = ["--compile-cache", tmp_path / "cache", "warmup", bert_folder, "--batch-tokens", 64]
    finished = subprocess.run(
        [sys.executable, "-m", "jaxvec.cli", *map(str, command)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 2
    assert "nothing was kept there" in finished.stderr
