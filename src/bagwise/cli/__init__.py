"""The command line: arguments in, calls of the library, messages and exit codes out; one command per file.

Nothing heavy is imported before a command runs, so that `bagwise --help` answers at once.
"""

from typing import Annotated

import typer

from bagwise.cli.apportion import apportion
from bagwise.cli.benchmark import benchmark
from bagwise.cli.evaluate import evaluate
from bagwise.cli.export import export
from bagwise.cli.fit import fit
from bagwise.cli.predict import predict
from bagwise.cli.reproduce import reproduce

__all__ = ["app"]

# plain help: rich alone would take a third of the time in which it has to answer
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def _print_version(asked: bool) -> None:
    if asked:
        from bagwise import __version__

        typer.echo(f"bagwise {__version__}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and end.")
    ] = False,
) -> None:
    """Learn classifiers for instances from the label proportions of bags.

    \b
    bagwise fit people.parquet --bag precinct --proportions results.csv --counts --out model
    bagwise predict model people.parquet --out predictions.parquet

    Tables are CSV, Parquet or Arrow files, recognised by their suffix. Exit codes: 0 done, 2 something to fix (one
    line on the standard error output says what and how), 130 interrupted, 141 output cut off (as by
    head), 143 terminated.
    """


for command in (fit, predict, evaluate, apportion, export, reproduce, benchmark):
    app.command()(command)
