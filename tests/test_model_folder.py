import json
import os

import pytest
import torch

from bagwise.model_folder import ModelFolderError, importable_name, read_model, write_model
from bagwise.networks import linear

MODEL = {"classes": ["Zürich", "Ulm"], "numbers": [0.1, 1e-300, None]}
WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2])}


@pytest.fixture
def folder(tmp_path):
    write_model(tmp_path / "model", MODEL, WEIGHTS)
    return tmp_path / "model"


def weights_file(folder):
    (path,) = folder.glob("weights-*.safetensors")
    return path


def test_what_is_written_is_read(folder):
    model, weights = read_model(folder)
    assert model == MODEL
    assert weights.keys() == WEIGHTS.keys()
    assert all(torch.equal(weights[name], WEIGHTS[name]) for name in WEIGHTS)
    assert json.loads((folder / "model.json").read_text())["versions"]["bagwise"]


def test_a_file_is_no_folder_and_stays_as_it_is(tmp_path):
    (tmp_path / "people.csv").write_text("age")
    with pytest.raises(ModelFolderError, match=r"saved into a folder, but .*people\.csv is a file\. Name a folder"):
        write_model(tmp_path / "people.csv", MODEL, WEIGHTS)
    assert (tmp_path / "people.csv").read_text() == "age"


def test_tied_weights_are_written_twice(tmp_path):
    tensor = torch.ones(3)
    write_model(tmp_path, {}, {"a": tensor, "b": tensor})
    assert torch.equal(read_model(tmp_path)[1]["b"], tensor)


def test_a_new_model_replaces_the_old_and_nothing_else(folder):
    (folder / "report.html").write_text("<p>")
    write_model(folder, {"new": True}, {"a": torch.zeros(1)})
    assert read_model(folder)[0] == {"new": True}
    assert sorted(path.name for path in folder.iterdir()) == [
        "model.json",
        "report.html",
        weights_file(folder).name,
    ]


def test_a_kill_before_the_last_step_leaves_the_old_model(folder, monkeypatch):
    real = os.replace

    def killed(source, target):
        if str(target).endswith("model.json"):
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_model(folder, {"new": True}, {"a": torch.zeros(1)})
    assert read_model(folder)[0] == MODEL


def test_a_foreign_file_is_not_overwritten(tmp_path):
    (tmp_path / "model.json").write_text('{"name": "something else"}')
    with pytest.raises(ModelFolderError, match=r"not the description of a bagwise model\. Choose another folder"):
        write_model(tmp_path, MODEL, WEIGHTS)
    assert (tmp_path / "model.json").read_text() == '{"name": "something else"}'


def edit(folder, **changes):
    path = folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def flip_last_byte(folder):
    path = weights_file(folder)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "model.json").unlink(), r"it has no model\.json"),
        (lambda folder: (folder / "model.json").write_bytes(b"\x80\x04K\x01."), r"not readable as JSON"),
        (lambda folder: (folder / "model.json").write_text("[]"), r"not the description of a bagwise model"),
        (lambda folder: truncate(folder / "model.json"), r"not readable as JSON"),
        (lambda folder: edit(folder, model={"classes": ["a", "b"]}), r"was changed after it was saved"),
        (lambda folder: edit(folder, format_version=99), r"in format 99, .* reads format \d\. Install the version"),
        (lambda folder: weights_file(folder).unlink(), r"weights of the model, is missing"),
        (lambda folder: truncate(weights_file(folder)), r"truncated or changed: it does not match its checksum"),
        (flip_last_byte, r"truncated or changed: it does not match its checksum"),
    ],
)
def test_damage_is_refused(folder, damage, message):
    damage(folder)
    with pytest.raises(ModelFolderError, match=message):
        read_model(folder)


def test_weights_are_looked_for_in_the_folder_only(folder):
    """A description whose checksum is right may still come from a stranger."""
    from bagwise import model_folder

    path = folder / "model.json"
    content = json.loads(path.read_text())
    content.pop("sha256")
    content["weights"]["file"] = "../" + weights_file(folder).name
    path.write_text(json.dumps({**content, "sha256": model_folder._digest(content)}))
    with pytest.raises(ModelFolderError, match="outside"):
        read_model(folder)


def test_only_what_an_import_finds_has_a_name():
    assert importable_name(linear) == "bagwise.networks:linear"
    with pytest.raises(ValueError, match=r"'.*<lambda>' is not importable by name\. Move it into a module"):
        importable_name(lambda inputs, classes: linear(inputs, classes))
