"""`python -m experiments`: lists the published tables, and runs them.

    python -m experiments                                  # what there is
    python -m experiments all --data DATA                  # everything; saved as it comes
    python -m experiments bert_flow_table2 --data DATA --model bert-base-uncased=FOLDER@8

--model puts a local folder in a published model's place, @8 its first 8 blocks only. Results are saved as they come,
under experiments/results; a run that was stopped goes on where it was.
"""

import importlib
import warnings
from pathlib import Path
from typing import Annotated

import typer

from experiments.results_page import read_results, section, write_page
from experiments.runner import RESULTS, run_tables
from experiments.setup import Model, Setup
from jaxvec.cli.options import run_script, say
from jaxvec.errors import InputError
from jaxvec.models.sources import find_model

TABLES = (
    "bert_flow_table1",
    "bert_flow_table2",
    "bert_flow_table4",
    "bert_flow_table5",
    "bert_flow_table6",
    "bert_whitening_table1",
    "bert_whitening_table2",
    "bert_whitening_dimension",
    "simcse_aggregation",
    "chinese_tables",
    "lcqmc_table",
)
PAGE = Path(__file__).parent / "RESULTS.md"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def run(
    names: Annotated[list[str] | None, typer.Argument(help="Tables, or all; none lists them.")] = None,
    data: Annotated[Path | None, typer.Option(help="Root folder of the data sets.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="NAME=FOLDER or NAME=FOLDER@BLOCKS.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or auto.")] = "float32",
    resamples: Annotated[int, typer.Option(help="For the intervals; 0 leaves them out.")] = 10_000,
) -> None:
    modules = {name: importlib.import_module(f"experiments.{name}") for name in TABLES}
    if not names:
        for name, module in modules.items():
            print(f"{name:26} {module.__doc__.splitlines()[0]}")
        return
    wanted = TABLES if names == ["all"] else names
    if unknown := [name for name in wanted if name not in modules]:
        raise InputError(f"no table {', '.join(unknown)}; there are {', '.join(TABLES)}, all")
    if data is None or not data.is_dir():
        raise InputError(f"--data {data}: expected the root folder of the data sets, one folder a task")
    if dtype not in ("float32", "bfloat16", "auto"):
        raise InputError(f"--dtype {dtype}: expected float32, bfloat16 or auto")
    if resamples < 0:
        raise InputError(f"--resamples {resamples}: expected 0 or more")
    models = [Model.parse(text, dtype) for text in model or ()]
    published = {row.model for module in modules.values() for row in module.TABLE.rows if row.model}
    for each in models:
        if each.name not in published:
            raise InputError(
                f"--model {each.name}={each.folder}: no row has this model; there are {', '.join(sorted(published))}"
            )
        find_model(each.folder)
    for name in TABLES:  # a page that cannot be written is known before hours of work
        if (RESULTS / f"{name}.json").exists():
            read_results(RESULTS / f"{name}.json")
    setup = Setup(data, {each.name: each for each in models}, dtype, resamples)
    for finished in run_tables({name: modules[name].TABLE for name in wanted}, setup):
        print(section(finished.name, read_results(finished.path)))
    write_page(RESULTS, PAGE, list(TABLES))


if __name__ == "__main__":
    warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
    run_script(app)
