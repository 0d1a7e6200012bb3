"""The command line in processes of its own: what is imported, exit codes, Ctrl-C, SIGTERM."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

FIT = ["fit", "people.csv", "--bag", "precinct", "--proportions", "shares.csv", "--out", "model"]


def start(place, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "bagwise", *arguments],
        cwd=place.folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("command", [[], ["fit"], ["predict"], ["evaluate"], ["apportion"], ["export"], ["reproduce"]])
def test_help_imports_nothing_heavy_and_shows_an_example(command):
    heavy = ("torch", "numpy", "polars", "matplotlib", "jinja2", "sklearn", "rich", "scipy", "narwhals")
    code = (
        "import sys\nfrom bagwise.cli import app\n"
        f"try:\n    app({[*command, '--help']!r})\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"bagwise {command[0] if command else 'fit'} " in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_result_on_one_stream_and_warnings_on_the_other(place):
    process = start(
        place, "fit", "survey.csv", *FIT[2:], "--epochs", "1", "--network", "linear", "--no-report", "--json"
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out)["model"] == "model"
    assert err.startswith("warning: column 'vote'")
    assert err.splitlines() == [f"warning: {text}" for text in json.loads(out)["warnings"]]


def test_an_error_is_one_line_and_code_2(place):
    process = start(place, *FIT[:2], "--bag", "precint", *FIT[4:])
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not (place / "model").exists()


@pytest.mark.usefixtures("ctrl_c_is_heard")
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "Interrupted"), (signal.SIGTERM, 143, "Terminated")]
)
def test_interrupted_in_the_middle(place, number, code, word):
    before = set(place.folder.iterdir())
    process = start(place, *FIT, "--epochs", "1000000", "--network", "linear")
    try:
        waited_until = time.monotonic() + 120
        while set(place.folder.iterdir()) == before:  # until the place of the model is made
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < waited_until
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    # Python ends itself by SIGINT when it struck inside an exec, as imports have; to a shell both are 130
    assert process.returncode == code or (process.returncode == -number == -signal.SIGINT), err
    assert (out, err) == ("", f"{word}. Nothing was written.\n")
    assert set(place.folder.iterdir()) == before
