"""The code is formatted and linted, so that the one test command says everything."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("command", [("check",), ("format", "--check")])
def test_ruff_has_nothing_to_say(command):
    root = Path(__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "."], cwd=root, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
