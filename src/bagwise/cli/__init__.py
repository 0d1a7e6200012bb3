"""The command line: arguments in, calls of the library, messages and exit codes out; one command per file.

Nothing heavy is imported before a command runs, so that `bagwise --help` answers at once.
"""

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


@app.callback()
def main() -> None:
    """Learn classifiers for instances from the label proportions of bags.

    \b
    bagwise fit people.parquet --bag precinct --proportions results.csv --counts --out model
    bagwise predict model people.parquet --out predictions.parquet

    Tables are CSV, Parquet or Arrow files, told by their suffix. Exit codes: 0 done, 2 something to mend (one line on
    the standard error output says what and how), 130 interrupted, 143 terminated.
    """


for command in (fit, predict, evaluate, apportion, export, reproduce, benchmark):
    app.command()(command)
