"""Writing vectors: what is read back is what was written, and a failure leaves what was there before."""

import os
import signal
import stat
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxvec.errors import InputError
from jaxvec.textfiles import read_sentences
from jaxvec.vectorfiles import atomic_folder, atomic_write_bytes, open_writer


@pytest.fixture(params=["npy", "parquet"])
def kind(request):
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
    return request.param


def read(path):
    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r")
    pq = pytest.importorskip("pyarrow.parquet")
    column = pq.read_table(path)["vector"].combine_chunks()
    return column.flatten().to_numpy().reshape(-1, column.type.list_size)


def chunk(rows, dim, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


def names(folder):
    return sorted(file.name for file in folder.iterdir())


@given(sizes=st.lists(st.integers(0, 5), max_size=5), dim=st.integers(1, 5))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_chunks_written_are_the_rows_read(tmp_path, kind, sizes, dim):
    path = tmp_path / f"vectors.{kind}"
    chunks = [chunk(size, dim, seed) for seed, size in enumerate(sizes)]
    sentences = [f"sentence {i}\n\u2028\0 é🙂" for i in range(sum(sizes))]
    with open_writer(path, dim) as writer:
        start = 0
        for vectors in chunks:
            writer.write(vectors, sentences[start : start + len(vectors)])
            start += len(vectors)
    expected = np.concatenate([np.empty((0, dim), np.float32), *chunks])
    got = read(path)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, expected)
    if kind == "parquet":
        assert list(read_sentences(path, "text")) == sentences
    assert names(tmp_path) == [path.name]


def test_bytes_of_a_npy_file_do_not_depend_on_the_chunks_and_have_numpys_layout(tmp_path):
    vectors = chunk(7, 3)
    with open_writer(tmp_path / "one.npy", 3) as writer:
        writer.write(vectors, ["s"] * 7)
    with open_writer(tmp_path / "many.npy", 3) as writer:
        for row in vectors:
            writer.write(row[None], ["s"])
    np.save(tmp_path / "numpy.npy", vectors)
    one = (tmp_path / "one.npy").read_bytes()
    assert one == (tmp_path / "many.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()


def test_other_float_types_and_memory_orders_are_stored_as_float32_rows(tmp_path, kind):
    vectors = np.asfortranarray(chunk(4, 3).astype(np.float64))
    with open_writer(tmp_path / f"v.{kind}", 3) as writer:
        writer.write(vectors, ["s"] * 4)
        writer.write(vectors[::2, :].astype(np.float16), ["s"] * 2)
    np.testing.assert_allclose(read(tmp_path / f"v.{kind}"), vectors[[0, 1, 2, 3, 0, 2]], atol=2e-3)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, OSError])
def test_an_exception_leaves_the_earlier_file_and_nothing_else(tmp_path, kind, error):
    path = tmp_path / f"vectors.{kind}"
    path.write_bytes(b"earlier")

    def stopped():
        with open_writer(path, 2) as writer:
            writer.write(chunk(3, 2), ["s"] * 3)
            raise error("stop")

    with pytest.raises(error, match="stop"):
        stopped()
    assert path.read_bytes() == b"earlier"
    assert names(tmp_path) == [path.name]


def test_an_earlier_file_stays_until_the_new_one_is_complete(tmp_path, kind):
    path = tmp_path / f"vectors.{kind}"
    path.write_bytes(b"earlier")
    with open_writer(path, 2) as writer:
        writer.write(chunk(3, 2), ["s"] * 3)
        assert path.read_bytes() == b"earlier"
    np.testing.assert_array_equal(read(path), chunk(3, 2))


def run(code, *arguments, **options):
    code = "import sys\nimport numpy as np\nfrom jaxvec.vectorfiles import open_writer\n" + textwrap.dedent(
        code
    )
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
@pytest.mark.parametrize("rows", [1, 100_000], ids=["at the end", "in the middle"])
def test_a_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path, kind, rows):
    path = tmp_path / f"vectors.{kind}"
    code = """
        import resource
        from jaxvec.errors import InputError
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            with open_writer(sys.argv[1], 4) as writer:
                writer.write(np.ones((int(sys.argv[2]), 4), np.float32), ["s"] * int(sys.argv[2]))
        except InputError as error:
            print(error)
    """
    out, err = run(code, path, rows).communicate(timeout=300)
    assert out.startswith(f"{path} cannot be written: File too large")
    assert err == ""
    assert names(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
def test_a_kill_leaves_no_file_under_the_final_name(tmp_path, kind):
    path = tmp_path / f"vectors.{kind}"
    code = """
        with open_writer(sys.argv[1], 4) as writer:
            writer.write(np.ones((1000, 4), np.float32), ["s"] * 1000)
            print("written", flush=True)
            sys.stdin.read()
    """
    process = run(code, path, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "written\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert not path.exists()
    assert all(name.startswith(".vectors.") and name.endswith(".tmp") for name in names(tmp_path))


@pytest.mark.skipif(sys.platform == "win32", reason="permission bits are POSIX")
def test_results_follow_the_umask(tmp_path, kind):
    before = os.umask(0o027)
    try:
        with open_writer(tmp_path / f"v.{kind}", 2) as writer:
            writer.write(chunk(1, 2), ["s"])
        atomic_write_bytes(tmp_path / "bytes", b"")
        with atomic_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in names(tmp_path)}
    assert modes == {"bytes": 0o640, "folder": 0o750, f"v.{kind}": 0o640}


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need rights there")
def test_a_symbolic_link_is_written_through(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "v.npy").symlink_to(tmp_path / "disk" / "real.npy")
    with open_writer(tmp_path / "v.npy", 2) as writer:
        writer.write(chunk(1, 2), ["s"])
    assert (tmp_path / "v.npy").is_symlink()
    assert names(tmp_path / "disk") == ["real.npy"]


def test_what_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch):
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(InputError, match=r"v\.csv: .*\.npy or \.parquet"):
        open_writer(tmp_path / "v.csv", 2)
    with pytest.raises(InputError, match=r"missing.*v\.npy: there is no folder .*missing"):
        open_writer(tmp_path / "missing" / "v.npy", 2)
    with pytest.raises(InputError, match=r"folder\.npy is a folder"):
        open_writer(tmp_path / "folder.npy", 2)
    with pytest.raises(InputError, match=r"dim=0"):
        open_writer(tmp_path / "v.npy", 0)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"v\.parquet.*pip install 'jaxvec\[parquet\]'"):
        open_writer(tmp_path / "v.parquet", 2)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match=r"v\.npy: the folder .* is not writable"):
        open_writer(tmp_path / "v.npy", 2)
    assert names(tmp_path) == ["folder.npy"]


@pytest.mark.parametrize(("shape", "count"), [((2, 3), 2), ((2, 2), 3)])
def test_vectors_that_do_not_fit_are_refused(tmp_path, kind, shape, count):
    expected = rf"v\.{kind}: got vectors of shape \({shape[0]}, {shape[1]}\) for {count} sentences"
    with pytest.raises(InputError, match=expected), open_writer(tmp_path / f"v.{kind}", 2) as writer:
        writer.write(np.ones(shape, np.float32), ["s"] * count)
    assert names(tmp_path) == []


def test_bytes_are_replaced_in_one_step(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    atomic_write_bytes(path, b"first")
    atomic_write_bytes(path, b"second")
    assert path.read_bytes() == b"second"

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"config\.json cannot be written: No space left on device"):
        atomic_write_bytes(path, b"third")
    assert path.read_bytes() == b"second"
    assert names(tmp_path) == ["config.json"]


def test_a_folder_appears_complete_or_not_at_all(tmp_path):
    path = tmp_path / "model"
    with atomic_folder(path) as folder:
        (folder / "weights").mkdir()
        (folder / "weights" / "a").write_bytes(b"a")
        assert not path.exists()
    assert (path / "weights" / "a").read_bytes() == b"a"

    def stopped():
        with atomic_folder(tmp_path / "other") as folder:
            (folder / "half").write_bytes(b"")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert names(tmp_path) == ["model"]


def test_a_folder_that_holds_something_is_never_replaced(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"full is a folder that is not empty"):
        atomic_folder(tmp_path / "full")
    with pytest.raises(InputError, match=r"notes is a file"):
        atomic_folder(tmp_path / "full" / "notes")
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        atomic_folder(tmp_path / "nowhere" / "model")

    def overtaken():
        with atomic_folder(tmp_path / "empty") as folder:
            (folder / "a").write_text("a")
            (tmp_path / "empty" / "late").write_text("written by another program meanwhile")

    with pytest.raises(InputError, match=r"empty cannot be written"):
        overtaken()
    assert names(tmp_path) == ["empty", "full"]
    assert names(tmp_path / "empty") == ["late"]
    with atomic_folder(tmp_path / "new"):
        pass
    with atomic_folder(tmp_path / "new") as folder:
        (folder / "a").write_text("a")
    assert names(tmp_path / "new") == ["a"]


def test_a_pipe_is_not_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "v.npy")
    with pytest.raises(InputError, match="ordinary file"):
        open_writer(tmp_path / "v.npy", 3)
    assert (tmp_path / "v.npy").is_fifo()
