"""`jaxvec …`: a thin door in front of the library. Results go to stdout, everything else to stderr."""

import io
import signal
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxvec.cli.demo import demo
from jaxvec.cli.encode import encode
from jaxvec.cli.evaluate import app as evaluate
from jaxvec.cli.export import export
from jaxvec.cli.fit import fit
from jaxvec.cli.index import add, index, remove
from jaxvec.cli.inspect import inspect
from jaxvec.cli.options import say
from jaxvec.cli.search import cluster, dedupe, handover, search
from jaxvec.cli.warmup import warmup
from jaxvec.errors import InputError

app = typer.Typer(
    help="Sentence vectors whose cosine means something: BERT encoders and their calibration, in JAX.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(encode)
app.command(no_args_is_help=True)(fit)
app.command(no_args_is_help=True)(export)
app.add_typer(evaluate, name="eval")
app.command(no_args_is_help=True)(inspect)
app.command(no_args_is_help=True)(index)
app.command(no_args_is_help=True)(search)
app.command(no_args_is_help=True)(add)
app.command(no_args_is_help=True)(remove)
app.command(no_args_is_help=True)(cluster)
app.command(no_args_is_help=True)(dedupe)
app.command(no_args_is_help=True)(handover)
app.command(no_args_is_help=True)(warmup)
app.command()(demo)


def main() -> None:
    """Runs the command line; bad input ends with exit code 2 and one line on stderr."""
    # As exceptions, signals let half-written files be removed.
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
        getattr(signal, "SIGHUP", signal.SIGTERM),
    ):  # not on Windows
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup and background jobs ignore some
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
        status: Any = 0
        try:
            app()
        except InputError as error:
            say(f"error: {error}")
            status = 2
        except SystemExit as end:
            status = end.code
        if status and "jaxvec.parallel" in sys.modules:
            from jaxvec.parallel import leave

            leave(status)
        sys.exit(status)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    compile_cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder that keeps compiled programs for later runs; also JAX_COMPILATION_CACHE_DIR.",
        ),
    ] = None,
) -> None:
    if compile_cache is not None:
        import jax

        jax.config.update("jax_compilation_cache_dir", str(compile_cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    if version:
        from jaxvec import __version__

        print(__version__)
        raise typer.Exit
