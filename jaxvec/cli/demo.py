"""`jaxvec demo`: the language reference that ships inside Python, encoded and asked."""

from typing import Annotated

import typer

from jaxvec.cli.options import Dtype, Json, Model, load_encoder, print_result


def demo(
    questions: Annotated[
        list[str] | None, typer.Argument(help="Questions to the Python language reference.")
    ] = None,
    model: Model = "all-MiniLM-L6-v2",
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Encode the language reference that ships inside Python, and answer questions from it."""
    from jaxvec.demo import run_demo

    encoder = load_encoder(model, dtype=dtype)
    report = run_demo(encoder, questions or None)
    print_result(as_json, report.text(), report.figures())
