"""Choosing without labels, measured: cells are of one number of pairs, and the page says what picked the rule."""

import json
import sys

import pytest

from experiments import choosing_without_labels as script
from jaxvec import InputError

CELL = {
    "pairs": 9,
    "raw": 0.5,
    "chosen": 0.6,
    "chosen_is": "0,6 raw",
    "best": 0.7,
    "best_is": "0,6 whitening",
}


@pytest.fixture
def call(tmp_path, monkeypatch):
    """call("--pairs", …) → the cells that were measured by then; measuring is left out."""
    monkeypatch.setattr(script, "RESULTS", tmp_path / "cells.json")
    monkeypatch.setattr(script, "read_task", lambda *_: None)
    monkeypatch.setattr(script, "measure", lambda *_: CELL)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["script", ".", "--model", "all-MiniLM-L6-v2@4:STS-B", *arguments])
        script.main()
        return list(json.loads((tmp_path / "cells.json").read_text()))

    return run


def test_other_pairs_are_other_cells(call):
    assert call("--pairs", "40") == ["all-MiniLM-L6-v2@4|stsb|40"]
    assert call("--pairs", "40") == ["all-MiniLM-L6-v2@4|stsb|40"]
    assert call() == ["all-MiniLM-L6-v2@4|stsb|40", "all-MiniLM-L6-v2@4|stsb|all"]


def test_the_page_says_which_cells_picked_the_rule(call, tmp_path):
    call()
    page = (tmp_path / "cells.md").read_text()
    assert "1 of these 1 cells are of those models or tasks" in page
    assert "none is held out" in page
    assert ", held out |" not in page
    page = script.report({"all-mpnet-base-v2|stsb|all": CELL, "all-mpnet-base-v2|sts12|all": CELL})
    assert "1 of these 2 cells" in page
    assert "only those marked so are held out" in page
    assert page.count(", held out |") == 1


def test_a_file_of_something_else_stays(call, tmp_path):
    (tmp_path / "cells.json").write_text("[1]")
    with pytest.raises(InputError, match=r"cells\.json does not hold this script's results"):
        call()
    assert (tmp_path / "cells.json").read_text() == "[1]"
