"""An index folder: it answers like brute force, survives kills and edits, and refuses what is not its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxvec import Index, InputError, SentenceEncoder, pipeline, resume, top_k
from jaxvec.journal import locked

KILLED = """
import os, signal, sys
from jaxvec import pipeline, resume
pipeline.CHUNK = resume.CHUNK = 16
from jaxvec.encoder import SentenceEncoder
from jaxvec.search.index import Index
done = 0
def tick(count):
    global done
    done += count
    if done >= 40:
        os.kill(os.getpid(), signal.SIGKILL)
texts = open(sys.argv[2], newline="").read().split("\\n")
Index.build(sys.argv[3], SentenceEncoder.load(sys.argv[1]), texts, tick=tick)
"""


@pytest.fixture(scope="module")
def built(encoder, texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "index"
    Index.build(folder, encoder, texts)
    return folder


@pytest.fixture
def folder(built, tmp_path):
    return Path(shutil.copytree(built, tmp_path / "index"))


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_answers_are_those_of_the_vectors(encoder, texts, folder):
    index = Index.open(folder)
    asked = ["the man plays", "it rains"]
    expected = top_k(encoder.encode(asked, normalize=False), encoder.encode(texts, normalize=False), 7)
    hits = index.search(asked, k=7)
    assert [[hit.text for hit in row] for row in hits] == [[texts[i] for i in row] for row in expected[1]]
    assert np.abs([[hit.score for hit in row] for row in hits] - expected[0]).max() < 1e-5
    assert (len(index), index.dim) == (200, 32)


@pytest.mark.parametrize(
    ("dtype", "metric"), [("float32", "cosine"), ("bfloat16", "dot"), ("int8", "cosine")]
)
def test_a_calibration_is_fitted_once_and_applied_to_documents_and_queries(
    encoder, texts, tmp_path, dtype, metric, principal
):
    folder = tmp_path / "index"
    Index.build(folder, encoder, texts, calibrate=principal(8), dtype=dtype, metric=metric)
    whitened = encoder.with_calibration(principal(8)(encoder.encode(texts, normalize=False)))
    expected = top_k(whitened.encode(texts[:9]), whitened.encode(texts), 3, metric=metric)
    index = Index.open(folder)
    assert (index.dim, index.encoder.dim) == (8, 8)
    scores, rows = index.top_k(whitened.encode(texts[:9]), 3)
    assert np.abs(scores / expected[0] - 1).max() < 1e-3
    assert (rows[:, 0] == expected[1][:, 0]).all()
    if metric == "cosine":
        assert [row[0].text for row in index.search(texts[:9], k=1)] == texts[:9]


def test_documents_of_every_kind_come_back(encoder, tmp_path):
    documents = ["", "two\nlines", "naïve café 😀", "it rains", "\u2028", "a\r"]
    index = Index.build(tmp_path / "index", encoder, documents)
    assert [index.text(number) for number in range(6)] == documents
    with pytest.raises(InputError, match="there is no document 6; the index has seen 6"):
        index.text(6)


def test_adding_and_removing_equals_indexing_what_is_left(encoder, texts, tmp_path):
    index = Index.build(tmp_path / "index", encoder, texts[:120])
    before = files(tmp_path / "index")
    index = index.add(texts[120:170]).add(texts[170:]).remove(range(0, 200, 3))
    after = files(tmp_path / "index")
    assert {name: after[name] for name in before if name != "index.json"}.items() <= before.items()
    kept = [number for number in range(200) if number % 3]
    fresh = Index.build(tmp_path / "fresh", encoder, [texts[number] for number in kept])
    index = Index.open(tmp_path / "index")
    queries = encoder.encode(texts[:20], normalize=False)
    (scores, rows), (expected, order) = index.top_k(queries, 5), fresh.top_k(queries, 5)
    assert np.abs(scores - expected).max() < 1e-5
    assert np.array_equal(rows[:, 0], np.array(kept)[order[:, 0]])
    assert len(index) == len(kept)
    assert np.concatenate([numbers for numbers, _ in index.blocks(50)]).tolist() == kept


def test_removing_everything_leaves_nothing_to_find(folder):
    index = Index.open(folder).remove(range(200))
    assert index.search(["it rains"]) == [[]]
    for number in (3, 200, -1):
        with pytest.raises(InputError, match=f"there is no document {number} to remove"):
            index.remove([number])


def test_a_number_given_twice_is_removed_once(folder):
    assert len(Index.open(folder).remove([5, 5, 6])) == 198


def test_killed_while_indexing_the_same_call_gives_the_same_bytes(
    encoder, model_folder, texts, tmp_path, monkeypatch, principal
):
    for module in (pipeline, resume):
        monkeypatch.setattr(module, "CHUNK", 16)
    corpus, killed = tmp_path / "corpus.txt", tmp_path / "killed"
    corpus.write_text("\n".join(texts[:100]), newline="")
    command = [sys.executable, "-c", KILLED, model_folder, corpus, killed]
    one_device = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}  # as in this process
    ended = subprocess.run(list(map(str, command)), cwd=Path(__file__).parents[2], env=one_device)
    assert ended.returncode == -9
    assert not killed.exists()
    with pytest.raises(InputError, match="the run that makes it is not finished"):
        Index.open(killed)
    options = {"calibrate": principal(4), "dtype": "int8"}
    ticks = []
    Index.build(killed, encoder, texts[:100], tick=ticks.append, **options)
    assert 0 < sum(ticks) < 100
    Index.build(tmp_path / "whole", encoder, texts[:100], **options)
    assert files(killed) == files(tmp_path / "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.txt", "killed", "whole"}


def test_stopped_after_encoding_nothing_is_encoded_again(encoder, texts, tmp_path):
    def fail(vectors):
        raise RuntimeError("stopped")

    folder = tmp_path / "index"
    with pytest.raises(RuntimeError, match="stopped"):
        Index.build(folder, encoder, texts, calibrate=fail)
    ticks = []
    with pytest.raises(InputError, match="holds work on another corpus; give --restart"):
        Index.build(folder, encoder, texts[:-1])
    Index.build(folder, encoder, texts, tick=ticks.append)
    assert not ticks
    assert Index.open(folder).text(7) == texts[7]


def stop(*_):
    raise RuntimeError("stopped")


def test_what_kills_have_left_behind_is_cleared_away(encoder, texts, tmp_path):
    work = tmp_path / ".index.unfinished"
    with pytest.raises(RuntimeError, match="stopped"):
        Index.build(tmp_path / "index", encoder, texts[:9], calibrate=stop)
    for name in ("finished", ".finished.0.tmp", "again", ".raw.npy.unfinished"):
        (work / name).mkdir()
        (work / name / "index.json").write_text("{")
    Index.build(tmp_path / "index", encoder, texts[:9])
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    (tmp_path / "index" / ".index.json.0.tmp").write_text("{")
    Index.open(tmp_path / "index").remove([1])
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == ["index.json", "segment-000000"]


def test_an_addition_is_listed_last(folder, texts, monkeypatch):
    """Else a kill, and the same call again, would add the documents twice."""
    index = Index.open(folder)
    with monkeypatch.context() as patch:
        patch.setattr("jaxvec.search.index.atomic_write_bytes", stop)
        with pytest.raises(RuntimeError, match="stopped"):
            index.add(texts[:9])
    assert len(Index.open(folder)) == 200
    ticks = []
    assert len(index.add(texts[:9], tick=ticks.append)) == 209
    assert not ticks  # what was encoded is kept until it is listed
    assert not list(folder.glob(".*"))


def test_what_was_encoded_is_kept_until_the_index_is_there(encoder, texts, tmp_path, monkeypatch):
    def replace(source, target, real=os.replace):
        return stop() if Path(target).name == "index" else real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(RuntimeError, match="stopped"):
            Index.build(tmp_path / "index", encoder, texts[:9])
    ticks = []
    Index.build(tmp_path / "index", encoder, texts[:9], tick=ticks.append)
    assert not ticks


def test_what_a_kill_after_the_listing_left_is_cleared_away(encoder, folder, texts):
    (folder / ".segment-000000.unfinished").mkdir()
    Index.open(folder).add(texts[:9])
    assert not list(folder.glob(".*"))
    (folder.parent / ".index.unfinished").mkdir()
    with pytest.raises(InputError, match="not empty"):
        Index.build(folder, encoder, texts)
    assert [path.name for path in folder.parent.iterdir()] == ["index"]


@pytest.mark.parametrize("name", ["corpus.json", ".raw.npy.unfinished/progress-0-of-1.jsonl"])
def test_damaged_notes_of_unfinished_work_are_named(encoder, texts, tmp_path, name):
    noted = tmp_path / ".index.unfinished" / name
    with pytest.raises(RuntimeError, match="stopped"):
        Index.build(tmp_path / "index", encoder, texts[:9], calibrate=stop)
    if name != "corpus.json":
        noted.parent.mkdir()
        (noted.parents[1] / "raw.npy").rename(noted.parent / "rows.npy")
    for damage in ("garbage", "[1]", "{}" if name == "corpus.json" else '{"plan": 1}\n{}'):
        noted.write_text(damage + "\n")
        with pytest.raises(InputError, match=f"{noted.name} is damaged; give --restart"):
            Index.build(tmp_path / "index", encoder, texts[:9])
    Index.build(tmp_path / "index", encoder, texts[:9], restart=True)


def test_vectors_of_several_segments_are_read_as_one_array(folder, texts):
    vectors = Index.open(folder).add(texts[:9]).vectors
    whole = vectors[:]
    assert whole.shape == vectors.shape == (209, 32)
    mask = np.arange(209) % 50 == 0
    for rows in (-1, 208, slice(None, None, 2), slice(205, 190, -3), slice(9, 3), [0, -1, 205], [], mask):
        assert np.array_equal(vectors[rows], whole[np.array(rows, int) if isinstance(rows, list) else rows])
    for rows in (209, [-210], (slice(None), 0), [1.5], mask[:-1]):
        with pytest.raises(IndexError):
            vectors[rows]


def test_a_calibrated_index_needs_its_calibration(encoder, texts, tmp_path, principal):
    index = Index.build(tmp_path / "index", encoder, texts, calibrate=principal(4))
    shutil.rmtree(index.folder / "encoder")
    with pytest.raises(InputError, match="the calibration of this index, is missing; index the corpus again"):
        Index.open(index.folder).search(["it rains"])


def test_an_update_of_jax_between_encoding_and_the_rest_only_warns(encoder, texts, tmp_path):
    folder, noted = tmp_path / "index", tmp_path / ".index.unfinished" / "corpus.json"
    with pytest.raises(RuntimeError, match="stopped"):
        Index.build(folder, encoder, texts[:9], calibrate=stop)
    noted.write_text(noted.read_text().replace("jax 0", "jax 00"))
    with pytest.warns(UserWarning, match="versions was .*; its rows agree within rounding"):
        Index.build(folder, encoder, texts[:9], tick=stop)


def test_a_full_disk_is_an_error_of_one_line(encoder, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("3000 requested and 2544 written")

    monkeypatch.setattr("jaxvec.search.segment.np.save", full)
    with pytest.raises(InputError, match=r"texts\.utf8 cannot be written: 3000 requested and 2544 written"):
        Index.build(tmp_path / "index", encoder, ["it rains"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["vectors.npy", "texts.utf8", "ends.npy"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damaged_files_are_named(folder, name, damage):
    path = folder / "segment-000000" / name
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data if damage == "flip" else data[:-5])
    with pytest.raises(
        InputError, match=f"{name} (is damaged|has .* bytes|is missing).*index the corpus again"
    ):
        Index.open(folder)


def test_a_damaged_description_and_another_folder_are_refused(folder, tmp_path):
    text = (folder / "index.json").read_text()
    (folder / "index.json").write_text(text.replace('"dim": 32', '"dim": 31'))
    with pytest.raises(InputError, match=r"index\.json is damaged"):
        Index.open(folder)
    (folder / "index.json").write_text("")
    with pytest.raises(InputError, match=r"index\.json is damaged"):
        Index.open(folder)
    with pytest.raises(InputError, match="is not an index: expected a folder written by `jaxvec index`"):
        Index.open(tmp_path)


def test_another_model_is_refused(encoder, texts, folder, write_bert, tmp_path, principal):
    other = SentenceEncoder.load(write_bert(tmp_path / "other", blocks=1, seed=1))
    with pytest.raises(InputError, match="made with another encoder"):
        Index.open(folder, other)
    with pytest.raises(InputError, match=r"layers \[0\] instead of \[1\]"):
        Index.open(folder, encoder.with_layers(0))
    with pytest.raises(InputError, match="calibration"):
        Index.open(folder, encoder.with_calibration(principal(2)(encoder.encode(texts))))
    with pytest.raises(InputError, match=r"queries have shape \(1, 5\); this corpus takes \[q, 32\]"):
        Index.open(folder, encoder).top_k(np.ones((1, 5), np.float32), 1)


def test_two_writers_do_not_overwrite_each_other(folder):
    first, second = Index.open(folder), Index.open(folder)
    first.remove([1])
    with pytest.raises(InputError, match="was changed meanwhile; open it again"):
        second.remove([2])


@pytest.mark.skipif(os.name == "nt", reason="folders are not locked there")
def test_one_writer_at_a_time(encoder, folder, tmp_path):
    index = Index.open(folder, encoder)
    with locked(folder):
        with pytest.raises(InputError, match="another process is working on it"):
            index.add(["it rains"])
        with pytest.raises(InputError, match="another process is working on it"):
            index.remove([1])
    (tmp_path / ".new.unfinished").mkdir()
    with locked(tmp_path / ".new.unfinished"), pytest.raises(InputError, match="another process is working"):
        Index.build(tmp_path / "new", encoder, ["it rains"], restart=True)


def test_a_model_that_has_moved_can_be_put_into_the_index(write_bert, tmp_path):
    model, moved = write_bert(tmp_path / "model", blocks=1), tmp_path / "moved"
    index = Index.build(tmp_path / "index", SentenceEncoder.load(model, layers=(0,)), ["it rains", "the dog"])
    model.rename(moved)
    with pytest.raises(InputError, match=r"cannot load the encoder it was made with .* or a link to it, at"):
        Index.open(index.folder).search(["the dog"])
    (index.folder / "encoder").symlink_to(moved)
    assert Index.open(index.folder).search(["the dog"])[0][0].id == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sentences": []}, "the corpus holds no sentences"),
        ({"sentences": ["fine", 3]}, "3"),
        ({"sentences": "it rains"}, "sentences is a single text"),
        ({"dtype": "int4"}, "dtype is 'int4'"),
        ({"metric": "l2"}, "metric is 'l2'"),
    ],
)
def test_bad_input_leaves_nothing_behind(encoder, tmp_path, arguments, message):
    with pytest.raises(InputError, match=message):
        Index.build(tmp_path / "index", encoder, **{"sentences": ["it rains"], **arguments})
    assert not list(tmp_path.iterdir())


def test_bad_queries_are_named(encoder, folder):
    index = Index.open(folder, encoder)
    with pytest.raises(InputError, match="k is 0"):
        index.search(["it rains"], k=0)
    with pytest.raises(InputError, match="queries is a single text"):
        index.search("it rains")
    with pytest.raises(InputError, match="sentences is a single text"):
        index.add("it rains")
    assert index.search([]) == []


def test_the_description_is_plain_json(folder):
    body, _ = (folder / "index.json").read_text().rstrip("\n").rsplit("\n", 1)
    meta = json.loads(body)
    assert (meta["dim"], meta["metric"], meta["dtype"]) == (32, "cosine", "float32")
