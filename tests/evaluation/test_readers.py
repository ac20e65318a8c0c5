"""Every layout gives the same Task; counts are the published ones; what is malformed is named by file and line."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from jaxvec.errors import InputError
from jaxvec.evaluation import remote, tasks
from jaxvec.evaluation.readers import read_task
from jaxvec.evaluation.tasks import PUBLISHED, Pairs, Task, canonical, make_task

COUNTS = {"train": 4, "dev": 3, "test": 2}


@pytest.fixture
def small(monkeypatch):
    """STS-B, SICK-R and LCQMC with a few rows, and a STS year of two subsets."""
    for name in ("stsb", "sickr", "lcqmc"):
        monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], counts=COUNTS))
    monkeypatch.setitem(PUBLISHED, "sts15", replace(PUBLISHED["sts15"], counts={"images": 2, "belief": 1}))


def _rows(split):
    return [(f'the "{split}" {i}', f"a\u2028b {i}", i + 0.5) for i in range(COUNTS[split])]


def _write(file, lines, end="\n"):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes("".join(line + end for line in lines).encode())


def _stsb_row(i, row):
    licence = ["licence", "url"] if i % 2 else []  # as some rows of the release have
    return "\t".join(["genre", "file", "2012", f"{i:04}", str(row[2]), *row[:2], *licence])


def _write_stsb(folder):
    for split in COUNTS:
        _write(folder / f"sts-{split}.csv", [_stsb_row(i, row) for i, row in enumerate(_rows(split))])


def _is_stsb(task):
    assert (task.name, task.split, len(task)) == ("stsb", "test", 2)
    assert list(zip(task.scored.first, task.scored.second, task.scores, strict=True)) == _rows("test")
    assert {name: len(pairs) for name, pairs in task.others.items()} == {"train": 4, "dev": 3}
    assert task.sentences == [row[0] for row in _rows("test")] + [row[1] for row in _rows("test")]


@pytest.mark.parametrize("place", ["STSB", "STSBenchmark", "STS/STSBenchmark", "."])
def test_stsb_from_a_root_from_senteval_and_from_its_own_folder(place, tmp_path, small):
    _write_stsb(tmp_path / place)
    _is_stsb(read_task("STS-B", tmp_path))


def test_stsb_from_glue_scores_dev_as_its_test_split_has_no_scores(tmp_path, small):
    header = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    for split in COUNTS:
        cells = [f"{i}\tg\tf\ty\to\ts\ts\t{a}\t{b}\t{c}" for i, (a, b, c) in enumerate(_rows(split))]
        lines = [header, *cells]
        _write(
            tmp_path / f"STS-B/{split}.tsv",
            lines if split != "test" else [s.rpartition("\t")[0] for s in lines],
        )
    task = read_task("stsb", tmp_path)
    assert (task.split, len(task), set(task.others)) == ("dev", 3, {"train", "test"})
    assert task.scores.tolist() == [0.5, 1.5, 2.5]


def test_sick_with_both_line_ends(tmp_path, small):
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    for file, split, end in (
        ("train", "train", "\n"),
        ("trial", "dev", "\n"),
        ("test_annotated", "test", "\r\n"),
    ):
        lines = [f"{i}\t{a}\t{b}\t{c}\tNEUTRAL" for i, (a, b, c) in enumerate(_rows(split))]
        _write(tmp_path / f"SICK/SICK_{file}.txt", [header, *lines], end)
    task = read_task("sick-r", tmp_path)
    assert list(zip(task.scored.first, task.scored.second, task.scores, strict=True)) == _rows("test")
    _write(tmp_path / "SICK/SICK_train.txt", [header, *["7\tsame\tid\t3\tNEUTRAL"] * 4])
    with pytest.raises(InputError, match=r"SICK_train\.txt, line 3: the id '7' is that of line 2 too"):
        read_task("sickr", tmp_path)


def test_a_year_drops_unscored_lines_and_keeps_subsets_apart(tmp_path, small):
    for subset, gold in (("images", ["1", "", "2.5"]), ("belief", ["", "0", ""])):
        _write(tmp_path / f"STS15/STS.gs.{subset}.txt", gold)
        _write(
            tmp_path / f"STS15/STS.input.{subset}.txt", [f"{subset} {i}\ttwo {i}\tsource" for i in range(3)]
        )
    task = read_task("sts15", tmp_path)
    assert task.sizes == [2, 1]
    assert list(task.subsets) == ["images", "belief"]
    assert task.scored.first == ["images 0", "images 2", "belief 1"]
    assert task.scores.tolist() == [1, 2.5, 0]
    _write(tmp_path / "STS15/STS.input.images.txt", ["no tab here", "x\ty", "x\ty"])
    with pytest.raises(InputError, match=r"STS\.input\.images\.txt, line 1: 1 tab-separated field"):
        read_task("sts15", tmp_path)
    _write(tmp_path / "STS15/STS.gs.images.txt", ["1", "2"])
    with pytest.raises(InputError, match=r"images\.txt has 3 lines but .*gs\.images\.txt has 2"):
        read_task("sts15", tmp_path)
    (tmp_path / "STS15/STS.gs.images.txt").unlink()
    with pytest.raises(InputError, match="STS15 lacks images"):
        read_task("sts15", tmp_path)


@pytest.mark.parametrize("names", [("LCQMC.{}.data", "valid"), ("{}.tsv", "dev")])
def test_chinese_layouts_with_and_without_header(names, tmp_path, small):
    pattern, dev = names
    for split, spelled in (("train", "train"), ("dev", dev), ("test", "test")):
        lines = [f"{a}\t{b}\t{i % 2}" for i, (a, b, _) in enumerate(_rows(split))]
        header = ["text_a\ttext_b\tlabel"] if split == "train" else []
        _write(tmp_path / "LCQMC" / pattern.format(spelled), header + lines)
    task = read_task("lcqmc", tmp_path)
    assert task.binary
    assert (task.scores.tolist(), set(task.others)) == ([0, 1], {"train", "dev"})


def test_a_copy_without_labels_is_refused(tmp_path, small):
    _write(tmp_path / "LCQMC/test.tsv", ["one\ttwo", "three\tfour"])
    with pytest.raises(InputError, match="LCQMC has no test split with scores"):
        read_task("lcqmc", tmp_path)


def test_a_wrong_number_of_rows_is_refused(tmp_path, small):
    _write_stsb(tmp_path / "STSB")
    _write(tmp_path / "STSB/sts-test.csv", [_stsb_row(0, _rows("test")[0])])
    with pytest.raises(InputError, match="STS-B test has 1 pairs; the published one has 2"):
        read_task("stsb", tmp_path)


def test_scores_that_are_none_and_rows_that_repeat_are_named(tmp_path, small):
    _write_stsb(tmp_path / "STSB")
    file = tmp_path / "STSB/sts-train.csv"
    good = file.read_text("utf-8").split("\n")
    for bad, message in (
        (good[1].replace("1.5", "n/a"), r"sts-train\.csv, line 2: the score is 'n/a'; expected a number"),
        (good[1].replace("1.5", "nan"), "line 2: the score is 'nan'"),
        (good[0], "line 2: the id 'genre file 2012 0000' is that of line 1 too"),
        ("too\tshort", r"line 2: 2 tab-separated field\(s\); expected 7"),
    ):
        _write(file, [good[0], bad, *good[2:-1]])
        with pytest.raises(InputError, match=message):
            read_task("stsb", tmp_path)
    file.write_bytes(b"\xff\n")
    with pytest.raises(InputError, match=r"sts-train\.csv, line 1: not UTF-8"):
        read_task("stsb", tmp_path)
    file.write_bytes(b"")
    with pytest.raises(InputError, match=r"sts-train\.csv is empty"):
        read_task("stsb", tmp_path)


def test_what_is_missing_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(
        InputError, match=r"looked for sts-test\.csv or test\.tsv in .*STSB/, .*STSBenchmark/"
    ):
        read_task("stsb", tmp_path)
    with pytest.raises(InputError, match=r"looked for STS\.input\.\*\.txt"):
        read_task("sts12", tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        read_task("stsb", tmp_path / "nowhere")
    with pytest.raises(InputError, match="stsb: say where it is: --data FOLDER"):
        read_task("stsb")
    with pytest.raises(InputError, match="not one of stsb, sts12"):
        read_task("wikipedia")


ROWS = [("A dog barks.", "It\u2028is loud.", 4.5), ("Rain.", "Tea?", 0.0)]


def _user_file(folder, kind):
    file = folder / f"mine.{kind}"
    if kind == "tsv":
        _write(file, ["score\tone\ttwo", *(f"{c}\t{a}\t{b}" for a, b, c in ROWS)])
    elif kind == "csv":
        _write(file, ["score,one,two", *(f'{c},"{a}","{b}"' for a, b, c in ROWS)])
    elif kind == "jsonl":
        _write(file, [json.dumps({"one": a, "two": b, "score": c}) for a, b, c in ROWS])
    else:
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = dict(zip(("one", "two", "score"), map(list, zip(*ROWS, strict=True)), strict=True))
        parquet.write_table(pa.table(columns), file)
    return file


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "parquet"])
def test_a_users_file(kind, tmp_path):
    file = _user_file(tmp_path, kind)
    task = read_task(str(file), columns="one,two,score")
    assert (task.name, task.split, task.others) == (f"mine.{kind}", "test", {})
    assert list(zip(task.scored.first, task.scored.second, task.scores, strict=True)) == ROWS
    with pytest.raises(InputError, match=f"mine.{kind}.*no column.*'sentence1'.*one"):
        read_task(str(file))
    with pytest.raises(InputError, match="expected two text columns and the score's"):
        read_task(str(file), columns="one,two")


def test_a_users_file_without_header_and_its_faults(tmp_path):
    file = tmp_path / "mine.tsv"
    _write(file, ["A\tB\t1", "C\tD\t2"])
    assert read_task(str(file), columns="1,2,3").scores.tolist() == [1, 2]
    for lines, message in (
        (["A\tB\t1", "C\tD\thigh"], r"mine\.tsv, line 2: the score is 'high'"),
        (["A\tB\t1", "C\tD\t1_0"], r"mine\.tsv, line 2: the score is '1_0'"),
        (["A\tB\t1", "C\tD"], r"line 2: 2 column\(s\); expected 3"),
        ([], "is empty; expected sentence pairs"),
    ):
        _write(file, lines)
        with pytest.raises(InputError, match=message):
            read_task(str(file), columns="1,2,3")
    _write(tmp_path / "mine.jsonl", ['{"a": "x", "b": 3, "c": 1}'])
    with pytest.raises(InputError, match=r"line 1: 3 is not text"):
        read_task(str(tmp_path / "mine.jsonl"), columns="a,b,c")
    _write(tmp_path / "mine.jsonl", ['{"a": "x", "b": "y", "c": true}'])
    with pytest.raises(InputError, match="the score is True"):
        read_task(str(tmp_path / "mine.jsonl"), columns="a,b,c")
    good = '{"a": "x", "b": "y \\ud83d\\ude00", "c": 1}'
    _write(tmp_path / "mine.jsonl", [good, good.replace("1}", "9" * 400 + "}")])
    with pytest.raises(InputError, match=r"mine\.jsonl, line 2: the score is 9{80}; expected a number"):
        read_task(str(tmp_path / "mine.jsonl"), columns="a,b,c")
    _write(tmp_path / "mine.jsonl", [good, good.replace("\\ude00", "")])
    with pytest.raises(InputError, match=r"mine\.jsonl, line 2: 'b' holds a lone surrogate"):
        read_task(str(tmp_path / "mine.jsonl"), columns="a,b,c")
    with pytest.raises(InputError, match="no such file"):
        read_task(str(tmp_path / "nowhere.csv"))


PREPARE = """
import sys, json, numpy as np, pathlib, tensorflow_datasets as tfds
rows = json.loads(sys.argv[2])
class Glue(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("2.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="stsb")]
    pkg_dir_path = pathlib.Path(sys.argv[1])
    def _info(self):
        text, f = tfds.features.Text(), tfds.features
        features = {"sentence1": text, "sentence2": text, "label": np.float32, "idx": np.int32}
        return self.dataset_info_from_configs(features=f.FeaturesDict(features))
    def _split_generators(self, manager):
        return {split: self._of(split) for split in rows}
    def _of(self, split):
        for i, (a, b, c) in enumerate(rows[split]):
            yield i, {"sentence1": a, "sentence2": b, "label": c, "idx": i}
    def _generate_examples(self):
        pass
Glue(config="stsb", data_dir=sys.argv[1], file_format="array_record").download_and_prepare()
assert "tensorflow" not in sys.modules
"""
READ = """
import sys, json
from dataclasses import replace
from jaxvec.evaluation.readers import read_task
from jaxvec.evaluation.tasks import PUBLISHED
PUBLISHED["stsb"] = replace(PUBLISHED["stsb"], counts={"train": 4, "dev": 3, "test": 2})
task = read_task("stsb", "tfds:" + sys.argv[1])
rows = list(zip(task.scored.first, task.scored.second, task.scores.tolist()))
others = {name: len(pairs) for name, pairs in task.others.items()}
print(json.dumps([task.split, rows, others, "tensorflow" in sys.modules]))
"""


def test_tfds_reads_what_it_prepared_without_tensorflow(tmp_path, run_python):
    pytest.importorskip("tensorflow_datasets")
    rows = {"train": _rows("train"), "validation": _rows("dev")}
    rows["test"] = [(a, b, -1.0) for a, b, _ in _rows("test")]  # GLUE's mark of a hidden label
    subprocess.run(
        [sys.executable, "-c", PREPARE, str(tmp_path), json.dumps(rows)],
        check=True,
        capture_output=True,
        timeout=600,
    )
    read = READ.replace("import sys", "import warnings; warnings.simplefilter('ignore'); import sys", 1)
    split, scored, others, tensorflow = run_python(read, tmp_path)
    assert (split, others, tensorflow) == ("dev", {"train": 4, "test": 2}, False)
    assert scored == [list(row) for row in _rows("dev")]


def test_tfds_names_what_it_carries():
    with pytest.raises(
        InputError, match=r"does not carry SICK-R; it has stsb \(glue/stsb\).*--data FOLDER with SICK/"
    ):
        read_task("sickr", "tfds")


def test_the_hub_gives_the_same_task(tmp_path, small, monkeypatch):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    import huggingface_hub

    for split, named in (("train", "train"), ("dev", "validation"), ("test", "test")):
        folder = tmp_path / "default" / named
        folder.mkdir(parents=True)
        columns = dict(
            zip(("sentence1", "sentence2", "score"), map(list, zip(*_rows(split), strict=True)), strict=True)
        )
        parquet.write_table(pa.table(columns), folder / "0000.parquet")
    files = [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.parquet")]
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: files)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo, file, **__: str(tmp_path / file))
    _is_stsb(read_task("stsb", "hub"))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: 1 / 0)
    with pytest.raises(InputError, match=r"stsbenchmark-sts cannot be fetched: .*--data FOLDER with STSB/"):
        remote.read_hub("stsb")
    with pytest.raises(InputError, match="SICK-R is not read from the hub"):
        read_task("sickr", "hub")


def test_names_in_any_spelling():
    assert [canonical(n) for n in ("STS-B-zh", "PAWSX_zh", "Sts16", "nothing")] == [
        "stsb-zh",
        "pawsx-zh",
        "sts16",
        None,
    ]
    assert all(canonical(name) == canonical(known.title) == name for name, known in tasks.PUBLISHED.items())


def test_tasks_refuse_what_cannot_be_scored():
    with pytest.raises(InputError, match=r"\[1, 2\] entries"):
        Pairs(["a"], ["b", "c"])
    with pytest.raises(InputError, match="no scored pair"):
        Task("t", "test", {"test": Pairs([], [], np.zeros(0))})
    task = Task(
        "t", "test", {"test": Pairs(["a"], ["b"], np.ones(1))}, {"dev": Pairs(["c"], ["d"], np.zeros(1))}
    )
    other = task.scoring("dev")
    assert (other.sentences, set(other.others)) == (["c", "d"], {"test"})
    with pytest.raises(InputError, match="no train split"):
        task.scoring("train")


def test_the_released_files(data):
    """Real data: every count is checked by the reader itself; the rest is what the releases are known for."""
    every = {name: read_task(name, data) for name in (*tasks.ENGLISH, "lcqmc", "stsb-zh", "snli")}
    assert (
        sum(map(len, (every[name] for name in tasks.ENGLISH)))
        == 1379 + 3108 + 1500 + 3750 + 3000 + 1186 + 4927
    )
    assert {name for name, task in every.items() if task.binary} == {"lcqmc", "snli"}
    assert sum('"' in text for text in every["stsb"].sentences) > 10  # quotes are literal
    assert all(task.scores.max() <= 5 for task in every.values())


def test_senteval_layout(data, tmp_path):
    shutil.copytree(data / "STS12", tmp_path / "STS/STS12-en-test")
    assert len(read_task("sts12", tmp_path)) == 3108


def test_make_task_wants_a_scored_split():
    with pytest.raises(InputError, match="ATEC has no test split with scores"):
        make_task("atec", {"train": Pairs(["a"], ["b"], np.ones(1))}, "here")
