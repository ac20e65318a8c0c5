"""`jaxvec index`, `search` and their kin: what they write and print, and how they end on bad input."""

import io
import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from jaxvec import Index, cli


@pytest.fixture(scope="module")
def made(model_folder, texts, tmp_path_factory):
    """A corpus file of 60 lines, two of them the same, and an index of it."""
    folder = tmp_path_factory.mktemp("made")
    lines = [*texts[:59], texts[3]]
    (folder / "corpus.txt").write_text("".join(f"{line}\n" for line in lines), newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.signal, "signal", lambda *_: None)
        arguments = ["index", model_folder, folder / "corpus.txt", "-o", folder / "index"]
        arguments += ["--calibrate", "whitening", "--dim", 12, "--dtype", "int8"]
        patch.setattr(sys, "argv", ["jaxvec", *map(str, arguments)])
        with suppress(SystemExit):
            cli.main()
    return folder / "index", lines


@pytest.fixture
def run(monkeypatch, capsys):
    """run("search", …, stdin="", terminal=False) → (exit code, stdout, stderr)."""
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)

    def call(*arguments, stdin="", terminal=False):
        monkeypatch.setattr(sys, "argv", ["jaxvec", *map(str, arguments)])
        monkeypatch.setattr(
            sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode(errors="surrogateescape")))
        )
        monkeypatch.setattr(sys.stdin, "isatty", lambda: terminal)
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return call


def test_index_and_search(run, made):
    folder, lines = made
    index = Index.open(folder)
    assert (len(index), index.dim, index.meta["dtype"]) == (60, 12, "int8")
    code, out, _ = run("search", folder, lines[7], "-k", 2, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["query"] == lines[7]
    assert found["hits"][0] == {"id": 7, "score": pytest.approx(1, abs=1e-4), "text": lines[7]}
    code, out, _ = run("search", folder, lines[7], "-k", 2)
    assert (code, len(out.splitlines())) == (0, 2)
    assert out.startswith("1.000       7  ")


def test_many_queries_come_from_standard_input(run, made):
    folder, lines = made
    code, out, _ = run("search", folder, "-", "-k", 1, "--json", stdin=f"{lines[5]}\n{lines[9]}\n")
    assert code == 0
    assert [json.loads(line)["hits"][0]["id"] for line in out.splitlines()] == [5, 9]
    _, out, _ = run("search", folder, lines[5], lines[9], "-k", 1)
    assert out.splitlines()[::2] == [lines[5], lines[9]]


def test_on_a_terminal_there_is_a_prompt(run, made, monkeypatch):
    folder, lines = made
    asked = iter([lines[8], " "])

    def answer(prompt):
        try:
            return next(asked)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", answer)
    code, out, err = run("search", folder, "-k", 1, terminal=True)
    assert code == 0
    assert out.split()[1] == "8"
    assert err == "? ? ? \n"  # standard output is none, and holds results only


def test_bytes_that_are_not_utf8_are_named_or_replaced(run, made):
    code, _, err = run("search", made[0], "-", stdin="a\udcff")
    assert code == 2
    assert "is not UTF-8" in err
    assert run("search", made[0], "-", "-k", 1, "--errors", "replace", stdin="a\udcff")[0] == 0


def test_add_and_remove(run, model_folder, tmp_path):
    corpus, folder = tmp_path / "corpus.txt", tmp_path / "index"
    corpus.write_text("it rains\nthe man plays\n")
    assert run("index", model_folder, corpus, "-o", folder, "--json")[0] == 0
    code, out, _ = run("add", folder, "-", "--json", stdin="the dog\nguitar guitar\n")
    assert (code, json.loads(out)) == (
        0,
        {"output": str(folder), "added": 2, "first": 2, "documents": 4},
    )
    assert run("remove", folder, 0, 2)[1] == f"{folder}: 2 removed, 2 documents left\n"
    _, out, _ = run("search", folder, "the dog", "-k", 9, "--json")
    assert {hit["id"] for hit in json.loads(out)["hits"]} == {1, 3}
    assert run("remove", folder, 2)[0] == 2
    assert run("remove", folder, 1, 3, 3)[1] == f"{folder}: 2 removed, 0 documents left\n"
    assert run("search", folder, "the dog")[:2] == (0, "")
    assert run("dedupe", folder)[:2] == (0, "")
    assert "there are no vectors to group" in run("cluster", folder, "-k", 1)[2]


def test_cluster(run, made, tmp_path):
    folder, lines = made
    code, out, _ = run("cluster", folder, "-k", 4, "-o", tmp_path / "clusters.jsonl", "--json")
    assert code == 0
    clusters = json.loads(out)["clusters"]
    assert sum(each["size"] for each in clusters) == 60
    rows = [json.loads(line) for line in (tmp_path / "clusters.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == lines
    assert all(rows[each["ids"][0]]["cluster"] == label for label, each in enumerate(clusters))
    assert run("cluster", folder, "-k", 4)[1].startswith("cluster 0: ")


def test_dedupe(run, made, tmp_path):
    folder = Path(shutil.copytree(made[0], tmp_path / "index"))
    code, out, err = run("dedupe", folder, "--threshold", 0.9999, "--json")
    assert code == 0
    pairs = [json.loads(line) for line in out.splitlines()]
    assert [3, 59] in [pair["ids"] for pair in pairs]
    assert "--remove would take out" in err
    assert run("dedupe", folder, "--threshold", 0.9999, "--remove")[0] == 0
    assert not Index.open(folder).valid[59]
    assert run("dedupe", folder, "--threshold", 0.9999)[1] == ""


@pytest.mark.parametrize("name", ["documents.parquet", "vectors.npy", "index.faiss", "index.usearch"])
def test_handover(run, made, tmp_path, name):
    for module in ("faiss", "usearch", "pyarrow"):
        pytest.importorskip(module)
    code, out, _ = run("handover", made[0], "-o", tmp_path / name)
    assert (code, out) == (0, f"{tmp_path / name}: 60 documents × 12\n")
    assert (tmp_path / name).stat().st_size > 60 * 12 * 4


def test_bad_input_ends_with_one_line(run, made, model_folder, tmp_path):
    folder = made[0]
    corpus, empty, out = tmp_path / "corpus.txt", tmp_path / "empty.txt", tmp_path / "out"
    corpus.write_text("it rains\n")
    empty.write_text("")
    for arguments, message in (
        (("search", folder, "a", "-k", 0), "k is 0"),
        (("search", folder, "a", "-k", -1), "k is -1"),
        (("search", folder), "give a query, or -"),
        (("search", folder, "a", "-"), "give it alone"),
        (("search", tmp_path, "a"), "is not an index"),
        (("index", model_folder, empty, "-o", out), "holds no sentences"),
        (("index", model_folder, corpus, "-o", folder), "not empty"),
        (("index", model_folder, corpus, "-o", out, "--dim", 4), "give it with --calibrate whitening or pca"),
        (("index", model_folder, corpus, "-o", out, "--dtype", "int4"), "--dtype is 'int4'"),
        (("index", model_folder, corpus, "-o", out, "--metric", "l2"), "--metric is 'l2'"),
        (("index", model_folder, corpus, "-o", out, "--calibrate", "magic"), "expected raw, whitening"),
        (("add", folder, empty), "holds no sentences"),
        (("cluster", folder, "-k", 61), "expected a number of clusters from 1 to 60"),
        (("cluster", folder, "--seed", -1), "seed is -1"),
        (("dedupe", folder, "--threshold", 2), "expected a cosine above 0"),
        (("handover", folder, "-o", tmp_path / "a.txt"), "ending in .parquet, .npy, .faiss, .usearch"),
        (("handover", folder, "-o", tmp_path / "none" / "a.usearch"), "there is no folder"),
        (("handover", folder, "-o", tmp_path / "a.npy", "--kind", "hnsw"), "name the file .faiss"),
    ):
        code, stdout, stderr = run(*arguments)
        assert (code, stdout) == (2, ""), arguments
        assert message in stderr.splitlines()[-1], arguments
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.txt", "empty.txt"}
    assert not list(folder.glob(".*"))
