"""Where outputs are put: folders that exist, links, and what is left when the last steps fail."""

import errno
import os
import stat
from pathlib import Path

import pytest
import torch

from bagwise import ProportionClassifier
from bagwise.commands.outputs import staged_file, staged_model_folder
from bagwise.model_folder import read_model, write_model
from fakes.workplace import QUICK, fails_in_one_line, run

NAMES = ["model.json", "report.html", "weights"]


def write(folder, name):
    write_model(folder, {"name": name}, {"a": torch.full((3,), float(len(name)))})
    (folder / "report.html").write_text(name)


def put(path, name, *, overwrite=False):
    with staged_model_folder(path, overwrite=overwrite) as folder:
        write(folder, name)


def name_in(folder):
    model, weights = read_model(folder)
    assert weights["a"][0] == len(model["name"])
    return model["name"]


def names(folder):
    return sorted(path.name.partition("-")[0] for path in folder.iterdir())


def busy(*_):
    raise OSError(errno.EBUSY, "Device or resource busy")


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "model", "old")
    return tmp_path / "model"


def test_a_fit_into_the_current_folder(place, monkeypatch):
    (place / "model").mkdir()
    monkeypatch.chdir(place / "model")
    line = f"fit ../people.csv --bag precinct --proportions ../shares.csv {QUICK} --report --out ."
    done = run(line)
    assert done.exit_code == 0, done.output
    assert "<title>model" in Path("report.html").read_text()
    assert run(line).exit_code == 2
    assert run(f"{line} --overwrite --seed 1").exit_code == 0
    assert ProportionClassifier.load(".").random_state == 1
    assert names(place / "model") == NAMES


def test_a_folder_that_exists_is_never_renamed(folder, monkeypatch):
    # as of mount points, and of the current folder
    monkeypatch.setattr(os, "rename", busy)
    before = folder.stat().st_ino
    put(folder, "newer", overwrite=True)
    assert (name_in(folder), (folder / "report.html").read_text()) == ("newer", "newer")
    assert names(folder) == NAMES
    assert folder.stat().st_ino == before


def test_a_link_to_a_folder_stays_one(folder, tmp_path):
    link, later = tmp_path / "link", tmp_path / "later"
    link.symlink_to(folder)
    put(link, "newer", overwrite=True)
    assert link.is_symlink()
    assert name_in(folder) == "newer"
    later.symlink_to(tmp_path / "parent", target_is_directory=True)
    put(later / "model", "new")
    assert name_in(tmp_path / "parent" / "model") == "new"


def test_a_link_to_a_file_stays_one(tmp_path):
    (tmp_path / "other").mkdir()
    link = tmp_path / "labels.csv"
    link.symlink_to(tmp_path / "other" / "of-today")
    with staged_file(link, overwrite=False) as staged:
        assert staged.suffix == ".csv"
        staged.write_text("1")
    assert link.is_symlink()
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["of-today"]


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path, mode):
    path = tmp_path / "labels.csv"
    path.write_text("0")
    path.chmod(mode)
    with staged_file(path, overwrite=True) as staged:
        staged.write_text("1")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("1", mode)


@pytest.mark.parametrize("has_report", [True, False])
def test_a_model_that_is_replaced_keeps_its_permissions(folder, has_report):
    for file in folder.iterdir():
        file.chmod(0o600)
    if not has_report:
        (folder / "report.html").unlink()
    put(folder, "newer", overwrite=True)
    assert names(folder) == NAMES
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("predict model people.csv --out", "people.csv"),
        ("predict model people.csv --out", "link.csv"),
        ("apportion model people.csv --proportions counts.csv --out", "people.csv"),
        ("apportion model people.csv --proportions counts.csv --out", "../{folder}/counts.csv"),
    ],
)
def test_what_a_command_reads_is_never_its_output(place_with_model, line, name):
    (place_with_model / "link.csv").symlink_to("people.csv")
    name = name.format(folder=place_with_model.folder.name)
    for option in ("", " --overwrite"):
        fails_in_one_line(place_with_model, f"{line} {name}{option}", f"{name} is read by this command", "another name")


@pytest.mark.parametrize("name", ["model.json", "weights-"])
def test_an_export_never_overwrites_a_part_of_a_model(place_with_model, name):
    (path,) = (place_with_model / "model").glob(f"{name}*")
    line = f"export model --onnx model/{path.name} --overwrite"
    fails_in_one_line(place_with_model, line, "may be part of a model", ".onnx")


def test_the_report_of_another_model_goes(folder):
    with staged_model_folder(folder, overwrite=True) as new:
        write_model(new, {"name": "newer"}, {"a": torch.full((3,), 5.0)})
    assert names(folder) == ["model.json", "weights"]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", range(6))
def test_a_kill_at_any_step_leaves_a_model(folder, monkeypatch, step):
    left = step

    def or_killed(change):
        def change_or_killed(*arguments, **options):
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return change(*arguments, **options)

        return change_or_killed

    killed = False
    with monkeypatch.context() as patch:
        try:
            with staged_model_folder(folder, overwrite=True) as new:
                write(new, "newer")
                patch.setattr(os, "replace", or_killed(os.replace))
                patch.setattr(Path, "unlink", or_killed(Path.unlink))
        except Killed:
            killed = True
    assert killed == (step < 5)  # two weights, two reports and model.json
    assert name_in(folder) == ("newer" if step >= 3 else "old")
    report = folder / "report.html"
    assert not report.exists() or report.read_text() == name_in(folder)
    (folder / ".new-model.abc.tmp").mkdir()  # left by a kill that lets nothing be cleared up
    put(folder, "newest", overwrite=True)
    assert name_in(folder) == "newest"
    assert len(list(folder.glob("weights-*"))) == 1


def test_what_a_killed_fit_left_in_an_empty_folder_is_no_model(tmp_path):
    (tmp_path / "model" / ".new-model.abc.tmp").mkdir(parents=True)
    put(tmp_path / "model", "new")
    assert name_in(tmp_path / "model") == "new"


@pytest.mark.parametrize(("name", "function"), [("model", "replace"), ("other", "rename")])
def test_a_model_that_cannot_be_put_in_its_place_is_kept(folder, monkeypatch, name, function):
    def put_while_busy():
        with staged_model_folder(folder.with_name(name), overwrite=True) as new:
            write(new, "newer")
            monkeypatch.setattr(os, function, busy)

    with pytest.raises(OSError, match=r"\(Device or resource busy\).* kept in .* Move the files from there") as caught:
        put_while_busy()
    (kept,) = folder.parent.glob("**/.*.tmp/new")
    assert f"kept in {kept}. " in str(caught.value)
    assert name_in(kept) == "newer"
    assert name_in(folder) == "old"


def test_a_folder_that_has_the_name_of_a_file_of_a_model_is_found_before_the_work(folder):
    (folder / "report.html").unlink()
    (folder / "report.html").mkdir()
    with pytest.raises(FileExistsError, match=r"holds 'report\.html', which is no part of a model"):
        put(folder, "newer", overwrite=True)
    assert name_in(folder) == "old"


def test_a_folder_is_no_place_for_a_file(tmp_path):
    with pytest.raises(IsADirectoryError, match="must be the name of a file"), staged_file(tmp_path, overwrite=True):
        raise AssertionError("the block must not start")
