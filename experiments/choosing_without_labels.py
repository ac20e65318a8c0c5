"""How good layers and calibration are that `jaxvec inspect` chooses without labels, on tasks that have them.

    python experiments/choosing_without_labels.py DATA --model all-MiniLM-L6-v2 --model all-MiniLM-L6-v2@4 \\
        --model FOLDER@8:stsb,sts13 --pairs 600

For every model and task the rule of `jaxvec.evaluation.choose` sees the task's sentences, never their scores. Beside
Spearman of its choice stand those of the raw last layer, and of the best of all candidates, picked with the labels.
`MODEL@BLOCKS` counts the first BLOCKS blocks only: the inner layers of a tuned model, which nobody tuned for cosine,
stand in for a raw BERT. `:TASKS` restricts a model to some tasks. `--pairs` thins every task evenly to at most that
many pairs. Finished cells in the JSON file are kept, so that an interrupted run goes on.

The rule (split halves, the preference for embedding and last, the gate at a mean cosine of 0.25, the kurtosis) was
picked among others by the labels of all-MiniLM-L6-v2 on all English tasks, of all-mpnet-base-v2 on STS-B and of the
Chinese encoder on its tasks. Only the cells marked "held out" had no part in that; read the others as an upper bound.
Some 20 s of two CPU cores a cell for all-MiniLM-L6-v2, in float32.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import jaxvec
from jaxvec.calibration.affine import whitening
from jaxvec.evaluation.choose import CorpusTexts, candidate_calibrations, candidate_layers, choose_encoded
from jaxvec.evaluation.corrections import Sample, parse_correction
from jaxvec.evaluation.encoding import EncodedTexts, make_choice
from jaxvec.evaluation.metrics import cosine, spearman
from jaxvec.evaluation.readers import read_task
from jaxvec.evaluation.tasks import ENGLISH
from jaxvec.vectorfiles import atomic_write_bytes

RESULTS = Path(__file__).parent / "results/choosing_without_labels.json"
LOOKED_AT = ("all-MiniLM-L6-v2", "stsb", "stsb-zh", "lcqmc")


def measure(encoder: jaxvec.SentenceEncoder, blocks: int, task: str, data: str, pairs: int) -> dict[str, Any]:
    """One cell: the chosen, the raw and the best candidate."""
    scored = read_task(task, data).scored
    keep = slice(None, None, max(1, -(-len(scored) // pairs)))
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


def report(cells: dict[str, dict[str, Any]]) -> str:
    """The table in Markdown, with what it adds up to."""
    lines = [
        "| model | task | pairs | raw, last | chosen | best with labels | chosen is | best is |",
        "|---" * 8 + "|",
    ]
    for key, cell in cells.items():
        model, task = key.split("|")
        held = "" if task in LOOKED_AT or model.split("@")[0] in LOOKED_AT else ", held out"
        figures = " | ".join(f"{100 * cell[name]:.2f}" for name in ("raw", "chosen", "best"))
        lines.append(
            f"| {model}{held} | {task} | {cell['pairs']} | {figures} | {cell['chosen_is']} | {cell['best_is']} |"
        )
    gain = np.array([cell["chosen"] - cell["raw"] for cell in cells.values()])
    possible = np.array([cell["best"] - cell["raw"] for cell in cells.values()])
    return "\n".join(
        [
            *lines,
            "",
            f"The choice beats the raw last layer in {(gain > 0).sum()} of {len(gain)} cells, equals it in "
            f"{(gain == 0).sum()}, and is behind in {(gain < 0).sum()}, by {100 * max(0, -gain.min()):.2f} at most. It gains "
            f"{100 * gain.mean():.2f} points on average, where a choice with labels gains {100 * possible.mean():.2f}; it is "
            f"{100 * (possible - gain).mean():.2f} behind that on average, {100 * (possible - gain).max():.2f} at most.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--model", action="append", required=True, help="MODEL[@BLOCKS][:TASKS]")
    parser.add_argument("--pairs", type=int, default=10**9)
    options = parser.parse_args()
    cells = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for model in options.model:
        name, _, tasks = model.partition(":")
        folder, _, blocks = name.partition("@")
        encoder = None
        for task in tasks.split(",") if tasks else ENGLISH:
            key = f"{Path(folder).name}{'@' + blocks if blocks else ''}|{task}"
            if key in cells:
                continue
            encoder = encoder or jaxvec.SentenceEncoder.load(folder, max_length=64)
            limit = int(blocks) if blocks else encoder.config.num_layers
            cells[key] = measure(encoder, limit, task, options.data, options.pairs)
            print(key, cells[key], flush=True)
            atomic_write_bytes(RESULTS, (json.dumps(cells, indent=1) + "\n").encode())
    text = report(cells)
    print(text)
    atomic_write_bytes(RESULTS.with_suffix(".md"), f"# Choosing without labels\n\n{text}\n".encode())


if __name__ == "__main__":
    main()
