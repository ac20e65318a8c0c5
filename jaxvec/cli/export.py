"""`jaxvec export`: encoder and calibration for other runtimes."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from jaxvec.cli.options import Dtype, Json, Layers, MaxLength, Normalize, Pooling, load_encoder, print_result


class Format(StrEnum):
    """What `jaxvec export` can write."""

    stablehlo = "stablehlo"
    sentence_transformers = "sentence-transformers"


def export(
    model: Annotated[
        str, typer.Argument(help="Folder (fitted or plain), Hugging Face id, or the bundled default.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The file, or for sentence-transformers the folder.")
    ],
    form: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.stablehlo,
    normalize: Normalize = None,
    pooling: Pooling = None,
    layers: Layers = None,
    dtype: Dtype = "float32",
    max_length: MaxLength = None,
    as_json: Json = False,
) -> None:
    """Write encoder, pooling and calibration for others: one StableHLO file, or a sentence-transformers folder."""
    from jaxvec.vectorfiles import atomic_folder

    if form is Format.sentence_transformers:
        from jaxvec.interchange.sentence_transformers_export import export_sentence_transformers as write

        atomic_folder(output)  # refuses a path that cannot be written before any work is done
    else:
        from jaxvec.interchange.stablehlo import export_stablehlo as write
    encoder = load_encoder(model, pooling=pooling, layers=layers, dtype=dtype, max_length=max_length)
    write(encoder, output, normalize=normalize)
    files = [output] if output.is_file() else [file for file in output.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    print_result(
        as_json,
        f"{output}: {form}, {encoder.dim} dimensions, {size / 1e6:.0f} MB",
        {"output": str(output), "format": str(form), "dim": encoder.dim, "bytes": size, **encoder.describe()},
    )
