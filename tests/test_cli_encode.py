"""`jaxvec encode` and `fit` at scale: folders, shares, several files, restarts and jobs of several processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxvec import InputError, SentenceEncoder, Shards, cli, pipeline, resume


@pytest.fixture
def run(monkeypatch, capsys, tmp_path, bert_folder):
    """run("encode", …) → (exit code, stdout, stderr), in tmp_path, in chunks of 32 sentences."""
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    for module in (pipeline, resume):
        monkeypatch.setattr(module, "CHUNK", 32)

    def call(verb, *arguments):
        options = ("--model", bert_folder)
        monkeypatch.setattr(sys, "argv", ["jaxvec", verb, *map(str, (*arguments, *options))])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, *capsys.readouterr()

    return call


@pytest.fixture
def corpus(tmp_path, texts):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(texts))
    return path


def test_shares_of_one_corpus_make_one_folder(run, corpus, texts, bert_folder):
    code, out, _ = run("encode", corpus, "-o", "vectors", "--part", "1/2", "--json")
    assert (code, json.loads(out)["complete"]) == (0, False)
    code, out, _ = run("encode", corpus, "-o", "vectors", "--part", "0/2", "--json")
    assert (code, json.loads(out)["complete"]) == (0, True)
    found = np.concatenate(list(Shards.open("vectors")))
    np.testing.assert_allclose(found, SentenceEncoder.load(bert_folder).encode(texts), atol=1e-5)


def test_several_files_are_shared_by_file(run, texts, bert_folder):
    pytest.importorskip("pyarrow")
    for number in range(3):
        Path(f"{number}.txt").write_text("\n".join(texts[number::3]))
    files = ("0.txt", "1.txt", "2.txt")
    for share, made in (("1/2", ["1"]), ("0/2", ["0", "1", "2"])):
        assert run("encode", *files, "-o", "vectors", "--part", share, "--format", "parquet")[0] == 0
        assert sorted(path.name for path in Path("vectors").iterdir()) == made
    encoder = SentenceEncoder.load(bert_folder)
    for number in range(3):
        found = np.concatenate(list(Shards.open(f"vectors/{number}")))
        np.testing.assert_allclose(found, encoder.encode(texts[number::3]), atol=1e-5)


def test_another_corpus_is_refused_until_it_is_told_to_restart(run, corpus, texts):
    assert run("encode", corpus, "-o", "vectors", "--part", "0/2")[0] == 0
    corpus.write_text("\n".join(texts[:-1]))
    code, _, said = run("encode", corpus, "-o", "vectors")
    assert code == 2
    assert "corpus_bytes was" in said
    code, _, said = run("encode", corpus, "-o", "vectors", "--restart")
    assert code == 0
    assert Shards.open("vectors").rows == len(texts) - 1


def test_a_rerun_says_what_it_did_not_do_again(run, corpus, texts):
    assert run("encode", corpus, "-o", "vectors")[0] == 0
    code, out, said = run("encode", corpus, "-o", "vectors", "--json")
    assert (code, json.loads(out)["resumed"]) == (0, len(texts))
    assert f"{len(texts)} of the sentences had been encoded" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("corpus.txt", "-o", "v", "--part", "2/2"), "expected I/N with I from 0 to N − 1"),
        (("corpus.txt", "-o", "v.npy", "--part", "0/2"), "folder of parts"),
        (("corpus.txt", "-o", "v.npy", "--format", "parquet"), "leave that out"),
        (("corpus.txt", "-o", "v", "--format", "csv"), "expected npy or parquet"),
        (("corpus.txt", "corpus.txt", "-o", "v"), "names that differ"),
        (("corpus.txt", "-", "-o", "v"), "names that differ"),
        (("corpus.txt", "-o", "v", "--part", "0/2", "--restart"), "remove it first"),
        (("corpus.txt", "-o", "corpus.txt"), "the text itself"),
        (("corpus.txt", "other.txt", "-o", "v.npy"), "name of a new one"),
        (("corpus.txt", "-o", "v", "--part", "0/2", "--distributed"), "leave --part out"),
        (("corpus.txt", "-o", "v", "--batch-tokens", str(10**9)), "at most 16,777,216"),
        (("corpus.txt", "-o", "v" * 250 + ".npy"), "too long"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(run, corpus, tmp_path, arguments, said):
    code, _, error = run("encode", *arguments)
    assert code == 2
    assert said in error
    assert list(tmp_path.iterdir()) == [corpus]


def test_what_no_corpus_could_be_fitted_with_is_refused_before_it_is_encoded(run, corpus, monkeypatch):
    from jaxvec import snapshot

    monkeypatch.setattr(snapshot, "moments_to_go_on_with", lambda *_, **__: pytest.fail("encoded"))
    for options, said in (
        (("whitening", "--dim", "9999"), "dim is 9999"),
        (("whitening", "--zca", "--dim", "5"), "zca keeps all"),
        (("whitening", "--power", "2"), "power is 2"),
        (("remove-components", "-k", "999"), "k is 999"),
    ):
        method, *rest = options
        code, _, error = run("fit", method, corpus, "-o", "w", *rest)
        assert (code, said in error) == (2, True), error


def test_a_fit_that_is_killed_at_its_very_end_leaves_nothing_behind(run, corpus, tmp_path, monkeypatch):
    from jaxvec import snapshot

    def killed(output):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(snapshot, "forget_moments", killed)
        with pytest.raises(KeyboardInterrupt):
            snapshot.save_and_forget(
                tmp_path / "w", lambda folder: folder.mkdir() or (folder / "jaxvec.json").touch()
            )
    assert sorted(path.name for path in tmp_path.iterdir()) == [".w.unfinished", corpus.name, "w"]
    assert run("fit", "standardize", corpus, "-o", "w")[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [corpus.name, "w"]


def test_files_with_dots_in_their_names_have_folders_of_their_own(run, corpus, texts, tmp_path):
    names = ("news.2007.txt", "news.en.txt")
    for name in names:
        (tmp_path / name).write_text("\n".join(texts[:20]))
    code, out, _ = run("encode", *names, "-o", "all", "--part", "0/2", "--json")
    assert (code, json.loads(out)["complete"]) == (0, False)
    code, out, _ = run("encode", *names, "-o", "all", "--part", "1/2", "--json")
    assert (code, json.loads(out)["complete"]) == (0, True)
    assert Shards.open("all/news-2007").rows == Shards.open("all/news-en").rows == 20
    with pytest.raises(InputError, match="for each text"):
        Shards.open("all")


def test_a_job_of_two_processes_fits_on_the_whole_corpus(corpus, tmp_path, texts, bert_folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": "2",
        "JAX_NUM_CPU_DEVICES": "1",
    }
    command = [
        sys.executable,
        "-m",
        "jaxvec.cli",
        "fit",
        "whitening",
        corpus,
        "-o",
        tmp_path / "w",
        "--dim",
        "4",
    ]
    running = [
        subprocess.Popen(
            [*map(str, command), "--model", str(bert_folder), "--distributed"],
            cwd=Path(__file__).parents[1],
            env=os.environ | job | {"JAX_PROCESS_ID": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    ends = [process.communicate(timeout=240) for process in running]
    assert [process.returncode for process in running] == [0, 0], ends
    vectors = SentenceEncoder.load(tmp_path / "w").encode(texts)
    np.testing.assert_allclose(np.cov(vectors.T), np.eye(4), atol=1e-3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "w"]
