"""What a person reads when something goes wrong."""

import pytest
import typer
from typer.testing import CliRunner

from bagwise.cli import app
from bagwise.cli.messages import failures_explained
from bagwise.estimator.ways import METHOD_NAMES


def test_an_error_of_several_lines_is_said_in_one(capsys):
    with pytest.raises(typer.Exit) as stopped, failures_explained():
        raise ValueError("the first line.\n   Another\n\tline.")
    assert stopped.value.exit_code == 2
    assert capsys.readouterr().err == "error: the first line. Another line.\n"


def test_an_interruption_has_the_exit_code_of_shells(capsys):
    with pytest.raises(typer.Exit) as stopped, failures_explained("Nothing was written."):
        raise KeyboardInterrupt
    assert stopped.value.exit_code == 130
    assert capsys.readouterr().err == "Interrupted. Nothing was written.\n"


def test_a_bug_shows_itself():
    with pytest.raises(ZeroDivisionError), failures_explained():
        raise ZeroDivisionError


def test_the_help_of_fit_names_every_method():
    # written out there, since importing the methods would make --help slow
    text = " ".join(CliRunner().invoke(app, ["fit", "--help"]).output.split()).replace("- ", "-")
    assert all(f" {name}" in text for name in METHOD_NAMES if name != "supervised"), text
