"""How good layers and calibration are that `jaxvec inspect` chooses without labels, on tasks that have them.

    python experiments/choosing_without_labels.py DATA --model all-MiniLM-L6-v2 --model all-MiniLM-L6-v2@4 \\
        --model FOLDER@8:stsb,sts13 --pairs 600

For every model and task the rule of `jaxvec.evaluation.choose` sees the task's sentences, never their scores. Beside
Spearman of its choice stand those of the raw last layer, and of the best of all candidates, picked with the labels.
`MODEL@BLOCKS` counts the first BLOCKS blocks only: the inner layers of a tuned model, which nobody tuned for cosine,
stand in for a raw BERT. `:TASKS` restricts a model to some tasks. `--pairs` thins every task evenly to at most that
many pairs. Finished cells of as many pairs in the JSON file are kept, so that an interrupted run goes on.

The rule (split halves, the preference for embedding and last, the gate at a mean cosine of 0.25, the kurtosis) was
picked among others by the labels of all-MiniLM-L6-v2 on all English tasks, of all-mpnet-base-v2 on STS-B and of the
Chinese encoder on its tasks; its bound on the width of whitening came after all-mpnet-base-v2 on STS13, whose 705
sentences it had whitened to 704 dimensions. Only the cells marked "held out" had no part in that; read the others as an upper bound.
Some 20 s of two CPU cores a cell for all-MiniLM-L6-v2, in float32.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import jaxvec
from jaxvec.calibration.affine import whitening
from jaxvec.cli.options import run_script
from jaxvec.errors import InputError
from jaxvec.evaluation.choose import CorpusTexts, candidate_calibrations, candidate_layers, choose_encoded
from jaxvec.evaluation.corrections import Sample, parse_correction
from jaxvec.evaluation.encoding import EncodedTexts, make_choice
from jaxvec.evaluation.metrics import cosine, spearman
from jaxvec.evaluation.readers import read_task
from jaxvec.evaluation.tasks import ENGLISH, PUBLISHED, canonical
from jaxvec.models.config import read_config
from jaxvec.models.sources import find_model
from jaxvec.vectorfiles import atomic_write_bytes

RESULTS = Path(__file__).parent / "results/choosing_without_labels.json"
LOOKED_AT = ("all-MiniLM-L6-v2", "stsb", "stsb-zh", "lcqmc", "sts13")


def measure(
    encoder: jaxvec.SentenceEncoder, blocks: int, task: str, data: str, pairs: int | None
) -> dict[str, Any]:
    """One cell: the chosen, the raw and the best candidate."""
    scored = read_task(task, data).scored
    keep = slice(None, None, -(-len(scored) // (pairs or len(scored))))
    first, second, gold = scored.first[keep], scored.second[keep], scored.scores[keep]
    texts = CorpusTexts.of([*first, *second])
    choices = [make_choice(encoder, layers=layers) for layers in candidate_layers(blocks)]
    encoded = EncodedTexts(encoder, texts.every, choices)
    found = choose_encoded(encoded, choices, texts)

    table = {}
    for choice in choices:
        vectors = encoded.vectors(choice, [*first, *second])
        sample = Sample(vectors)
        white = np.asarray(whitening(sample.moments)(vectors))
        for name in candidate_calibrations(white.shape[1]):
            kind, _, width = name.partition(":")
            if kind == "whitening":  # narrower ones are its leading columns
                calibrated = white[:, : int(width or white.shape[1])]
            else:
                fitted = parse_correction(name).fit(sample)
                calibrated = vectors if fitted is None else np.asarray(fitted(vectors))
            table[",".join(map(str, choice[1])), name] = spearman(cosine(*np.split(calibrated, 2)), gold)
    best = max(table, key=table.__getitem__)
    chosen = ",".join(map(str, found.layers)), found.calibration
    return {
        "pairs": len(gold),
        "raw": table[str(blocks), "raw"],
        "chosen": table[chosen],
        "chosen_is": " ".join(chosen),
        "best": table[best],
        "best_is": " ".join(best),
        "mean_cosine": found.mean_cosine,
    }


def is_held_out(key: str) -> bool:
    """Whether a cell's labels had no part in picking the rule."""
    model, task, _ = key.split("|")
    return not {task, model.split("@")[0]} & set(LOOKED_AT)


def report(cells: dict[str, dict[str, Any]]) -> str:
    """The table in Markdown, with what it adds up to."""
    lines = [
        "| model | task | pairs | raw, last | chosen | best with labels | chosen is | best is |",
        "|---" * 8 + "|",
    ]
    for key, cell in cells.items():
        model, task, _ = key.split("|")
        held = ", held out" if is_held_out(key) else ""
        figures = " | ".join(f"{100 * cell[name]:.2f}" for name in ("raw", "chosen", "best"))
        lines.append(
            f"| {model}{held} | {task} | {cell['pairs']} | {figures} | {cell['chosen_is']} | {cell['best_is']} |"
        )
    seen = len(cells) - sum(map(is_held_out, cells))
    held_out = "none is held out" if seen == len(cells) else "only those marked so are held out"
    gain = np.array([cell["chosen"] - cell["raw"] for cell in cells.values()])
    possible = np.array([cell["best"] - cell["raw"] for cell in cells.values()])
    return "\n".join(
        [
            *lines,
            "",
            "The rule was picked by the labels of all-MiniLM-L6-v2 on all English tasks, of all-mpnet-base-v2 on STS-B and "
            "STS13 (the bound on whitening's width) and "
            f"of chinese_roberta_l2 on STS-B-zh and LCQMC. {seen} of these {len(cells)} cells are of those models or tasks "
            f"and say how well the rule fits what it was picked by, an upper bound; {held_out}.",
            "",
            f"The choice beats the raw last layer in {(gain > 0).sum()} of {len(gain)} cells, equals it in "
            f"{(gain == 0).sum()}, and is behind in {(gain < 0).sum()}, by {100 * max(0, -gain.min()):.2f} at most. It gains "
            f"{100 * gain.mean():.2f} points on average, where a choice with labels gains {100 * possible.mean():.2f}; it is "
            f"{100 * (possible - gain).mean():.2f} behind that on average, {100 * (possible - gain).max():.2f} at most.",
        ]
    )


@dataclass(frozen=True)
class Asked:
    """One --model: what is loaded, how many of its blocks count, and the tasks it is measured on."""

    folder: str
    blocks: int | None
    tasks: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Asked":
        """From MODEL[@BLOCKS][:TASKS]."""
        name, _, tasks = text.partition(":")
        folder, at, blocks = name.partition("@")
        if not folder or (at and not (blocks.isdecimal() and int(blocks))):
            raise InputError(
                f"--model {text}: expected MODEL[@BLOCKS][:TASKS], such as all-MiniLM-L6-v2@4:stsb,sts13"
            )
        wanted = tasks.split(",") if tasks else ENGLISH
        if unknown := [task for task in wanted if canonical(task) is None]:
            raise InputError(
                f"--model {text}: no task {', '.join(unknown)}; there are {', '.join(PUBLISHED)}"
            )
        limit = read_config(find_model(folder)).num_layers
        if at and int(blocks) > limit:
            raise InputError(f"--model {text}: {folder} has {limit} blocks")
        return cls(folder, int(blocks) if at else None, tuple(map(canonical, wanted)))

    @property
    def name(self) -> str:
        """As the table has it."""
        return Path(self.folder).name + (f"@{self.blocks}" if self.blocks else "")


def read_cells() -> dict[str, dict[str, Any]]:
    """The cells measured so far, by model, task and most pairs."""
    if not RESULTS.is_file():
        return {}
    try:
        cells = json.loads(RESULTS.read_text("utf-8"))
        report(cells)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{RESULTS} does not hold this script's results ({error}); restore it from version control, or move it away"
        ) from error
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--model", action="append", required=True, help="MODEL[@BLOCKS][:TASKS]")
    parser.add_argument("--pairs", type=int, help="at most so many a task; default: all")
    options = parser.parse_args()
    if options.pairs is not None and options.pairs < 1:
        raise InputError(f"--pairs {options.pairs}: expected 1 or more")
    cells = read_cells()
    every = [Asked.parse(text) for text in options.model]
    for task in dict.fromkeys(task for asked in every for task in asked.tasks):
        read_task(task, options.data)
    for asked in every:
        encoder = None
        for task in asked.tasks:
            key = f"{asked.name}|{task}|{options.pairs or 'all'}"
            if key in cells:
                continue
            encoder = encoder or jaxvec.SentenceEncoder.load(asked.folder, max_length=64)
            limit = asked.blocks or encoder.config.num_layers
            cells[key] = measure(encoder, limit, task, options.data, options.pairs)
            print(key, cells[key], flush=True)
            atomic_write_bytes(RESULTS, (json.dumps(cells, indent=1) + "\n").encode())
    text = report(cells)
    print(text)
    atomic_write_bytes(RESULTS.with_suffix(".md"), f"# Choosing without labels\n\n{text}\n".encode())


if __name__ == "__main__":
    run_script(main)
