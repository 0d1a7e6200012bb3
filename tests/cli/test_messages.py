"""What a person reads when something goes wrong."""

import errno
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import typer
from typer.testing import CliRunner

import bagwise
from bagwise.cli import app
from bagwise.cli.messages import failures_explained, show
from bagwise.estimator.ways import METHOD_NAMES


def test_an_error_of_several_lines_is_said_in_one(capsys):
    with pytest.raises(typer.Exit) as stopped, failures_explained():
        raise ValueError("the first line.\n   Another\n\tline.")
    assert stopped.value.exit_code == 2
    assert capsys.readouterr().err == "error: the first line. Another line.\n"


def test_the_spaces_of_a_name_are_kept(capsys):
    with pytest.raises(typer.Exit), failures_explained():
        raise ValueError("bag 'Ward 1' is missing. Did you mean 'Ward  1'?")
    assert "'Ward  1'" in capsys.readouterr().err


def test_an_interruption_has_the_exit_code_of_shells(capsys):
    with pytest.raises(typer.Exit) as stopped, failures_explained("Nothing was written."):
        raise KeyboardInterrupt
    assert stopped.value.exit_code == 130
    assert capsys.readouterr().err == "Interrupted. Nothing was written.\n"


def test_an_interruption_in_another_error_is_one(capsys):
    def import_torch():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__ on 'Field' instance") from error

    with pytest.raises(typer.Exit) as stopped, failures_explained():
        import_torch()
    assert stopped.value.exit_code == 130
    assert capsys.readouterr().err == "Interrupted. Nothing was written.\n"


def test_sigterm_is_taken_like_ctrl_c_even_where_it_is_raised_anew(capsys):
    def train():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("training was interrupted.") from None

    with pytest.raises(typer.Exit) as stopped, failures_explained():
        train()
    assert stopped.value.exit_code == 143
    assert capsys.readouterr().err == "Terminated. Nothing was written.\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_is_left_to_who_has_asked_for_it():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("here"))
    try:
        with failures_explained():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ["here"]


def test_other_threads_may_run_commands():
    def command():
        with failures_explained():
            return "done"

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(command).result() == "done"


def test_a_reader_that_has_left_is_no_error(monkeypatch, capfd):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as nobody:
        monkeypatch.setattr("sys.stdout", nobody)
        with pytest.raises(typer.Exit) as stopped, failures_explained():
            show("a result")
        print("what Python would flush at its end", file=nobody, flush=True)
        monkeypatch.undo()
    assert stopped.value.exit_code == 141
    assert capfd.readouterr().err == ""


def test_a_broken_pipe_elsewhere_is_an_error(capsys):
    with pytest.raises(typer.Exit) as stopped, failures_explained():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe", "weights")
    assert stopped.value.exit_code == 2
    assert capsys.readouterr().err == "error: weights: Broken pipe.\n"


def test_a_bug_shows_itself():
    with pytest.raises(ZeroDivisionError), failures_explained():
        raise ZeroDivisionError


def test_the_help_of_fit_names_every_method():
    # written out there, since importing the methods would make --help slow
    text = " ".join(CliRunner().invoke(app, ["fit", "--help"]).output.split()).replace("- ", "-")
    assert all(f" {name}" in text for name in METHOD_NAMES if name != "supervised"), text


def test_the_version():
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"bagwise {bagwise.__version__}\n")
