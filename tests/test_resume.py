"""A run that is killed and given again ends with the same bytes; work of another run is refused, by name."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxvec import InputError, SentenceEncoder, Shards, encode_to, pipeline, resume, snapshot
from jaxvec.journal import Journal

FORMS = ["v.npy", "v.parquet", "folder", "folder:parquet"]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    for module in (pipeline, resume):
        monkeypatch.setattr(module, "CHUNK", 32)


@pytest.fixture(scope="module")
def encoder(bert_folder):
    return SentenceEncoder.load(bert_folder)


def target(folder: Path, form: str):
    name, _, kind = form.partition(":")
    if form.endswith("parquet"):
        pytest.importorskip("pyarrow")
    return folder / name, {"form": kind or None}


def contents(path: Path) -> dict[str, bytes]:
    """Every file below `path`, or that file alone; nothing else may be left beside it."""
    assert [other.name for other in path.parent.iterdir()] == [path.name]
    files = [path] if path.is_file() else sorted(path.iterdir())
    return {file.name: file.read_bytes() for file in files}


def stopping(texts, after):
    for row, text in enumerate(texts):
        if row == after:
            raise KeyboardInterrupt
        yield text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("after", [110, 150, 199])
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path, encoder, texts, form, after):
    for name in "ab":
        (tmp_path / name).mkdir()
    whole, options = target(tmp_path / "a", form)
    encode_to(whole, encoder, texts, **options)
    path, options = target(tmp_path / "b", form)
    with pytest.raises(KeyboardInterrupt):
        encode_to(path, encoder, stopping(texts, after), **options)
    assert not path.is_file()
    assert not (path / "manifest.json").exists()
    finished = encode_to(path, encoder, texts, **options)
    assert finished.complete
    assert finished.rows == 200
    assert 0 < finished.before < after
    assert contents(path) == contents(whole)


@pytest.mark.parametrize("form", FORMS)
def test_the_rows_are_those_of_encode(tmp_path, encoder, texts, form):
    path, options = target(tmp_path, form)
    encode_to(path, encoder, texts, normalize=True, **options)
    if path.is_dir():
        shards = Shards.open(path)
        parts = list(shards)
        assert (shards.rows, shards.dim, len(parts)) == (200, 32, 7)
        found = np.concatenate(parts)
    elif form == "v.npy":
        found = np.load(path, mmap_mode="r")
    else:
        column = pytest.importorskip("pyarrow.parquet").read_table(path)["vector"].combine_chunks()
        found = column.flatten().to_numpy().reshape(-1, 32)
    np.testing.assert_allclose(found, encoder.encode(texts, normalize=True), atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_no_sentences_give_an_output_without_rows(tmp_path, encoder, form):
    path, options = target(tmp_path, form)
    assert encode_to(path, encoder, [], **options).rows == 0
    assert path.exists()


@pytest.mark.parametrize("form", ["v.npy", "folder"])
def test_another_model_option_or_corpus_is_refused_by_name_and_changes_nothing(
    tmp_path, bert_folder, encoder, texts, form
):
    path, _ = target(tmp_path, form)
    with pytest.raises(KeyboardInterrupt):
        encode_to(path, encoder, stopping(texts, 150))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for other, given, options, said in [
        (SentenceEncoder.load(bert_folder, pooling="max"), texts, {}, "pooling was 'mean' and is 'max'"),
        (
            SentenceEncoder.load(bert_folder, dtype="bfloat16"),
            texts,
            {},
            "dtype was 'float32' and is 'bfloat16'",
        ),
        (encoder, texts, {"normalize": True}, "normalize was None and is True"),
        (encoder, texts, {"options": {"errors": "replace"}}, "errors was None and is 'replace'"),
        (encoder, ["other", *texts[1:]], {}, "sentences 1 to 32 are not what they were"),
        (encoder, texts[:40], {}, "sentences 33 to 64 are not"),
        (encoder, texts[:32], {}, "ends after 32 sentences"),
    ]:
        with pytest.raises(InputError, match=said):
            encode_to(path, other, given, **options)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    assert encode_to(path, encoder, texts[:40], restart=True).before == 0
    assert path.exists()


def test_another_weight_is_another_model(tmp_path, write_bert, encoder, texts):
    with pytest.raises(KeyboardInterrupt):
        encode_to(tmp_path / "v.npy", encoder, stopping(texts, 150))
    other = SentenceEncoder.load(write_bert(tmp_path / "other", seed=1))
    with pytest.raises(InputError, match="model was "):
        encode_to(tmp_path / "v.npy", other, texts)


def test_a_finished_folder_is_checked_and_left_as_it_is(tmp_path, encoder, texts):
    encode_to(tmp_path / "folder", encoder, texts)
    files = contents(tmp_path / "folder")
    assert encode_to(tmp_path / "folder", encoder, texts).before == 200
    assert contents(tmp_path / "folder") == files
    (tmp_path / "folder" / "part-000003.npy").unlink()
    assert encode_to(tmp_path / "folder", encoder, texts).before == 168
    assert contents(tmp_path / "folder") == files
    with pytest.raises(InputError, match="ends after 96"):
        encode_to(tmp_path / "folder", encoder, texts[:96])


def test_processes_share_a_folder_without_knowing_of_each_other(tmp_path, encoder, texts):
    for name in "ab":
        (tmp_path / name).mkdir()
    encode_to(tmp_path / "a" / "folder", encoder, texts)
    path = tmp_path / "b" / "folder"
    done = [encode_to(path, encoder, texts, share=(index, 3)) for index in (2, 0)]
    assert not any(finished.complete for finished in done)
    with pytest.raises(InputError, match="not finished"):
        Shards.open(path)
    assert encode_to(path, encoder, texts, share=(1, 3)).complete
    assert contents(path) == contents(tmp_path / "a" / "folder")
    with pytest.raises(InputError, match="folder of parts"):
        encode_to(tmp_path / "v.npy", encoder, texts, share=(0, 2))


def test_what_dead_processes_left_is_finished_by_any_number_of_others(tmp_path, encoder, texts):
    path = tmp_path / "folder"
    for index in (0, 1):
        with pytest.raises(KeyboardInterrupt):
            encode_to(path, encoder, stopping(texts, 199), share=(index, 2))
    finished = encode_to(path, encoder, texts)
    assert finished.complete
    assert 0 < finished.before < 200
    assert sorted(contents(path)) == ["manifest.json", *(f"part-{chunk:06d}.npy" for chunk in range(7))]


def test_a_run_that_has_finished_nothing_leaves_nothing(tmp_path, encoder, texts):
    for name in ("v.npy", "v.parquet", "folder"):
        with pytest.raises(KeyboardInterrupt):
            encode_to(tmp_path / name, encoder, stopping(texts, 10))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_not_touched(tmp_path, encoder):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InputError, match="other files in it"):
        encode_to(tmp_path, encoder, ["it rains"])
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize("form", ["folder", "folder:parquet"])
def test_only_unfinished_work_of_its_own_is_thrown_away(tmp_path, encoder, texts, form):
    path, options = target(tmp_path, form)
    encode_to(path, encoder, texts, **options)
    files = contents(path)
    with pytest.raises(InputError, match="finished, and only unfinished work"):
        encode_to(path, encoder, texts, restart=True, **options)
    assert contents(path) == files
    foreign = tmp_path / "pieces"
    foreign.mkdir()
    for name in ("part-00", "part-000000.npy", "part-00000-c000.snappy.parquet"):
        (foreign / name).write_text("mine")
    for restart in (False, True):
        with pytest.raises(InputError, match="other files in it"):
            encode_to(foreign, encoder, texts, restart=restart)
    assert len(list(foreign.iterdir())) == 3


@pytest.mark.parametrize("form", ["v.npy", "folder"])
def test_a_restart_waits_for_no_one(tmp_path, encoder, texts, form):
    path, _ = target(tmp_path, form)

    def others(texts):
        for row, text in enumerate(texts):
            if row == 150:
                with pytest.raises(InputError, match="another process"):
                    encode_to(path, encoder, texts, restart=True)
            yield text

    assert encode_to(path, encoder, others(texts)).complete
    assert path.exists()


@pytest.mark.parametrize("share", [(3, 3), (0, 0), (-1, 2), (1, 1)])
def test_a_share_that_is_none_is_refused(tmp_path, encoder, texts, share):
    with pytest.raises(InputError, match="share is"):
        encode_to(tmp_path / "v", encoder, texts, share=share)
    with pytest.raises(InputError, match="share is"):
        snapshot.moments_to_go_on_with(tmp_path / "w", encoder, texts, share=share)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("written", ["{", "[]", "{}", '{"jaxvec_vectors": 1, "rows": 3}'])
def test_a_manifest_that_is_damaged_is_named(tmp_path, encoder, texts, written):
    encode_to(tmp_path / "folder", encoder, texts[:40])
    (tmp_path / "folder/manifest.json").write_text(written)
    for use in (Shards.open, lambda path: encode_to(path, encoder, texts)):
        with pytest.raises(InputError, match=r"manifest\.json is damaged"):
            use(tmp_path / "folder")


def test_options_may_be_numpy_numbers_and_nothing_else_odd(tmp_path, encoder, texts):
    plan = resume.run_plan(encoder, batch_tokens=np.int64(512), normalize=np.bool_(True))
    assert json.loads(json.dumps(plan)) == plan
    with pytest.raises(InputError, match="plain JSON values"):
        encode_to(tmp_path / "w.npy", encoder, texts, options={"where": tmp_path})
    assert not list(tmp_path.iterdir())


def test_what_came_before_a_bad_row_is_kept_and_the_row_is_named(tmp_path, encoder, texts):
    for bad, said in ((None, "row 130 is NoneType"), ("\ud800", "row 130 holds a lone surrogate")):
        path = tmp_path / f"{said[-4:]}"
        with pytest.raises(InputError, match=said):
            encode_to(path, encoder, [*texts[:130], bad, *texts[131:]])
        assert encode_to(path, encoder, texts).before == 128
        assert encode_to(path, encoder, texts[:128] + texts[128:]).complete


def test_two_processes_cannot_write_the_same_output(tmp_path, encoder, texts):
    with pytest.raises(KeyboardInterrupt):
        encode_to(tmp_path / "folder", encoder, stopping(texts, 150))
    plan = json.loads((tmp_path / "folder/progress-0-of-1.jsonl").read_text().splitlines()[0])
    with (
        Journal(tmp_path / "folder/progress-0-of-1.jsonl", plan),
        pytest.raises(InputError, match="another process"),
    ):
        encode_to(tmp_path / "folder", encoder, texts)


def test_a_snapshot_that_its_journal_does_not_know_is_refused(tmp_path, encoder, monkeypatch):
    monkeypatch.setattr(snapshot, "_SECONDS", 0)
    texts = [f"{first} {second}" for first in "abcdefghij" for second in "klmnopqrst"]
    with pytest.raises(KeyboardInterrupt):
        snapshot.moments_to_go_on_with(tmp_path / "w", encoder, stopping(texts, 99))
    work = tmp_path / ".w.unfinished"
    with pytest.raises(InputError, match="none may throw it away"):
        snapshot.moments_to_go_on_with(tmp_path / "w", encoder, texts, share=(0, 2), restart=True)
    (work / "progress-0-of-1.jsonl").unlink()
    with pytest.raises(InputError, match=r"safetensors is damaged"):
        snapshot.moments_to_go_on_with(tmp_path / "w", encoder, texts)
    (work / "moments-0-of-1.safetensors").write_bytes(b"torn")
    with pytest.raises(InputError, match=r"safetensors is damaged"):
        snapshot.moments_to_go_on_with(tmp_path / "w", encoder, texts)
    assert snapshot.moments_to_go_on_with(tmp_path / "w", encoder, texts, restart=True).count == 100


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_journal_forgets_what_a_kill_tore_off(tmp_path, cut):
    path = tmp_path / "j.jsonl"
    with Journal(path, {"dtype": "float32"}) as journal:
        for chunk in range(3):
            journal.append({"chunk": chunk, "rows": 16384})
    lines = path.read_bytes()
    path.write_bytes(lines[:-cut])
    with Journal(path, {"dtype": "float32"}) as journal:
        whole = lines[:-cut].count(b"\n") - 1
        assert journal.entries == [{"chunk": chunk, "rows": 16384} for chunk in range(whole)]
        for chunk in range(whole, 3):
            journal.append({"chunk": chunk, "rows": 16384})
    assert path.read_bytes() == lines


def test_other_devices_may_go_on_with_a_warning(tmp_path):
    with Journal(tmp_path / "j.jsonl", {"dim": 3, "devices": "4 × TPU"}) as journal:
        journal.append({"chunk": 0, "rows": 7})
    with pytest.warns(UserWarning, match="devices was '4 × TPU' and is '8 × TPU'"):
        Journal(tmp_path / "j.jsonl", {"dim": 3, "devices": "8 × TPU"}).close()
    with pytest.raises(InputError, match="dim was 3 and is 4"):
        Journal(tmp_path / "j.jsonl", {"dim": 4, "devices": "4 × TPU"})


@pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX")
def test_killed_at_random_moments_encode_and_fit_end_with_the_same_bytes(bert_folder):
    script = Path(__file__).parents[1] / "experiments/kill_and_resume.py"
    asked = ["--kills", "2", "--sentences", "400", "--model", bert_folder, "--what", "encode-folder", "fit"]
    finished = subprocess.run([sys.executable, script, *asked], capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert sum(found["killed"] for found in json.loads(finished.stdout).values()) > 0


def test_a_single_text_leaves_nothing_behind(tmp_path, encoder):
    with pytest.raises(InputError, match="single text"):
        snapshot.moments_to_go_on_with(tmp_path / "w", encoder, "it rains")
    with pytest.raises(InputError, match="single text"):
        encode_to(tmp_path / "w.npy", encoder, "it rains")
    assert not list(tmp_path.iterdir())


def test_moments_of_a_stopped_fit_go_on_to_the_same_bits(tmp_path, encoder, monkeypatch):
    texts = [
        f"{first} {second}" for first in "abcdefghij" for second in "klmnopqrst"
    ]  # of one length: few programs
    monkeypatch.setattr(snapshot, "_SECONDS", 0)
    whole = encoder.moments(texts)
    with pytest.raises(KeyboardInterrupt):
        snapshot.moments_to_go_on_with(tmp_path / "w", encoder, stopping(texts, 99))
    seen = []
    with pytest.raises(InputError, match="sentences 1 to 32 are not"):
        snapshot.moments_to_go_on_with(tmp_path / "w", encoder, ["other", *texts[1:]])
    with pytest.raises(InputError, match="batch_tokens was None and is 128"):
        snapshot.moments_to_go_on_with(tmp_path / "w", encoder, texts, batch_tokens=128)
    again = snapshot.moments_to_go_on_with(tmp_path / "w", encoder, texts, tick=seen.append)
    assert 0 < sum(seen) < len(texts)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
    snapshot.forget_moments(tmp_path / "w")
    assert list(tmp_path.iterdir()) == []
