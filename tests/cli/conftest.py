"""Folders to run the command line in."""

import shutil

import pytest

from fakes.workplace import Workplace, run


@pytest.fixture(scope="session")
def fitted(tmp_path_factory):
    """The folder of a workplace with a model of people.csv that has learned something."""
    place = Workplace(tmp_path_factory.mktemp("fitted"))
    line = f"fit {place / 'people.csv'} --bag precinct --proportions {place / 'counts.csv'} --counts --no-report --out"
    done = run(line, place / "model")
    assert done.exit_code == 0, done.output
    return place.folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An own workplace, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    return Workplace(tmp_path)


@pytest.fixture
def place_with_model(place, fitted):
    shutil.copytree(fitted / "model", place / "model")
    return place
