"""Kills `jaxvec encode` and `jaxvec fit` at random moments; the command given again must end with the same bytes.

    python experiments/kill_and_resume.py [--kills 50] [--model FOLDER_OR_NAME] [--what encode-npy …]

Every round starts from nothing: the command runs in a process of its own, is killed (SIGKILL) at a moment drawn
uniformly from about the time an uninterrupted run takes, and is given again until it ends. Chunks hold 60 sentences
instead of 16,384, and a fit's snapshots are a tenth of a second apart, so that there are many of them to be killed
in; the lengths of sentences repeat from chunk to chunk, so that few programs are compiled. Goal: every one of 50
rounds ends with the bytes of the uninterrupted run, and leaves nothing else behind.

Prints one JSON object: rounds, how many were killed before their end, how many went on from finished work, and how many
differed (exit code 1 if any did).
"""

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

import jax

import jaxvec.encoder  # noqa: F401  (imported once, before the forks)
from jaxvec import cli, pipeline, resume, snapshot
from jaxvec.cli.options import run_script
from jaxvec.models.sources import find_model

CHUNK = 60
COMMANDS = {
    "encode-npy": ("encode", "vectors.npy"),
    "encode-parquet": ("encode", "vectors.parquet"),
    "encode-folder": ("encode", "vectors"),
    "fit": ("fit", "whitened"),
}


def digest(path: Path) -> str:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    parts = [
        f"{f.relative_to(path)} {hashlib.sha256(f.read_bytes()).hexdigest()}" for f in files if f.is_file()
    ]
    return "\n".join(parts)


def start(arguments: list[str]) -> int:
    """The command in a child process. No backend exists yet, so forking is safe, and the imports are shared."""
    child = os.fork()
    if child:
        return child
    with open(os.devnull, "w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        pipeline.CHUNK = resume.CHUNK = CHUNK
        snapshot._SECONDS = 0.1
        sys.argv = ["jaxvec", *arguments]
        status = 1
        try:
            cli.main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        finally:
            os._exit(status)


def end(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def rounds(kills: int, verb: str, name: str, corpus: Path, model: str) -> dict[str, int]:
    def arguments(output: Path) -> list[str]:
        method = ["whitening"] if verb == "fit" else []
        return [verb, *method, str(corpus), "-o", str(output), "--model", model]

    found = {"rounds": kills, "killed": 0, "went_on": 0, "differed": 0}
    with tempfile.TemporaryDirectory() as scratch:
        for sub in ("whole", *map(str, range(kills))):
            (Path(scratch) / sub).mkdir()
        whole = Path(scratch) / "whole" / name
        for path in (whole.with_name(f"first-{name}"), whole):  # the first compiles, the others will not
            started = time.monotonic()
            assert end(start(arguments(path))) == 0, "the uninterrupted run failed"
            seconds = time.monotonic() - started
        expected = digest(whole)
        for number in range(kills):
            output = Path(scratch) / str(number) / name
            child = start(arguments(output))
            time.sleep(random.uniform(0, seconds))
            os.kill(child, signal.SIGKILL)
            found["killed"] += end(child) == -signal.SIGKILL
            journals = list(output.parent.rglob("progress*"))
            # A plan, and a line for every finished chunk; a fit's chunks count once they are in a snapshot.
            went_on = any(len(journal.read_bytes().splitlines()) > 1 for journal in journals)
            found["went_on"] += went_on and (verb != "fit" or bool(list(output.parent.rglob("moments*"))))
            if not output.exists() or output.is_dir() or journals:
                finished = end(start(arguments(output))) in ((0, 2) if verb == "fit" else (0,))
            else:
                finished = True
            alone = [path.name for path in output.parent.iterdir()] == [name]
            if not (finished and alone and digest(output) == expected):
                found["differed"] += 1
                left = sorted(str(path.relative_to(output.parent)) for path in output.parent.rglob("*"))
                print(f"{verb}, round {number}: ended well: {finished}, left: {left}", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--what", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--sentences", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    find_model(asked.model)
    random.seed(asked.seed)
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", f"{folder}/programs")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        corpus = Path(folder) / "corpus.txt"
        words = [
            "a",
            "the",
            "dog",
            "man",
            "plays",
            "guitar",
            "it",
            "rains",
            "he",
            "she",
            "no",
            "one",
            "reads",
            "trains",
            "late",
            "again",
        ]
        lines = (" ".join(random.choices(words, k=1 + row % 30)) for row in range(asked.sentences))
        corpus.write_text("\n".join(lines))
        report = {what: rounds(asked.kills, *COMMANDS[what], corpus, asked.model) for what in asked.what}
    print(json.dumps(report))
    sys.exit(any(found["differed"] for found in report.values()))


if __name__ == "__main__":
    run_script(main)
