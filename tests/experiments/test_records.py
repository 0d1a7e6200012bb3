import dataclasses
import errno
import json
import os
from pathlib import Path

import pytest

from bagwise.experiments.provenance import collect_provenance
from bagwise.experiments.records import (
    Cell,
    RecordError,
    read_record,
    read_records,
    record_path,
    rounded,
    write_record,
)
from fakes.records import make_grid, make_record


def test_a_record_comes_back_as_it_was_written(tmp_path):
    record = make_record("rot", 16)
    path = write_record(tmp_path, record)
    assert path == tmp_path / "cifar10" / "fast" / "rot-16-seed0.json"
    assert read_record(path, Cell) == record


def test_a_record_is_a_small_json_file_with_a_line_per_field(tmp_path):
    path = write_record(tmp_path, make_record("kl", 1))
    fields = json.loads(path.read_text())
    assert fields["schema"] == 1
    assert len(path.read_text().splitlines()) == len(fields) + 2
    assert path.stat().st_size < 4000


def test_records_are_read_in_the_order_of_the_sweep(tmp_path):
    records = make_grid(bag_sizes=(1, 16, 128), seeds=2)
    for record in reversed(records):
        write_record(tmp_path, record)
    (tmp_path / "cifar10" / "fast" / ".kl-1-seed0.json.77.tmp").write_text("half a rec")  # left by a kill
    assert read_records(tmp_path, "cifar10", "fast") == records
    assert read_records(tmp_path, "cifar100", "fast") == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "not a valid record"),
        (lambda text: "", "not a valid record"),
        (lambda text: "[1]", "not an object"),
        (lambda text: text.replace('"schema": 1', '"schema": 2'), "schema is 2"),
        (lambda text: text.replace('"schema": 1,', ""), "schema is None"),
        (lambda text: text.replace('"curve"', '"curves"'), "lacks 'curve'"),
        (lambda text: text.replace('"seconds": 80.0,', ""), "seconds"),
        (lambda text: text.replace('"epoch": [1, ', '"epoch": ['), "differ in length"),
    ],
)
def test_a_damaged_record_is_named_and_refused(tmp_path, damage, message):
    write_record(tmp_path, make_record("rot", 16))
    path = write_record(tmp_path, make_record("kl", 16))
    damaged = damage(path.read_text())
    assert damaged != path.read_text()
    path.write_text(damaged)
    with pytest.raises(RecordError, match=message) as caught:
        read_records(tmp_path, "cifar10", "fast")
    assert str(path) in str(caught.value)
    assert "Delete it" in str(caught.value)


def test_a_record_that_was_moved_is_refused(tmp_path):
    path = write_record(tmp_path, make_record("kl", 16))
    elsewhere = record_path(tmp_path, Cell("cifar100", "fast", "kl", 16, 0))
    elsewhere.parent.mkdir(parents=True)
    path.rename(elsewhere)
    with pytest.raises(RecordError, match="another cell"):
        read_record(elsewhere, Cell)


def test_a_full_disk_leaves_the_earlier_record_whole(tmp_path, monkeypatch):
    path = write_record(tmp_path, make_record("kl", 16))
    before = path.read_bytes()

    def no_space(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left") as caught:
        write_record(tmp_path, dataclasses.replace(make_record("kl", 16), seconds=1.0))
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]  # no half-written file stays behind


def test_numbers_are_rounded_and_what_is_not_finite_becomes_null():
    assert rounded(0.123456789) == 0.12346
    assert rounded(1234567.0) == 1234600.0
    assert rounded(float("nan")) is None
    assert rounded(float("inf")) is None


def test_provenance_names_versions_and_hardware(monkeypatch):
    provenance = collect_provenance()
    import torch

    assert provenance.torch == torch.__version__
    assert provenance.cores == os.cpu_count()
    assert provenance.hardware
    assert provenance.started.endswith("+00:00")


def test_without_git_the_commit_is_unknown_unless_the_environment_names_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # no git there
    monkeypatch.delenv("BAGWISE_COMMIT", raising=False)
    provenance = collect_provenance()
    assert (provenance.commit, provenance.dirty) == (None, None)
    monkeypatch.setenv("BAGWISE_COMMIT", "abc123")
    assert collect_provenance().commit == "abc123"


def test_the_commit_that_the_environment_names_is_taken_also_where_there_is_git(monkeypatch):
    monkeypatch.setenv("BAGWISE_COMMIT", "abc123")
    provenance = collect_provenance()
    assert (provenance.commit, provenance.dirty) == ("abc123", None)


def test_a_repository_around_an_installed_bagwise_is_not_its_commit(monkeypatch, tmp_path):
    from bagwise.experiments import provenance

    asked = []

    def git(folder: Path, *arguments: str):
        asked.append(arguments[0])
        return None if arguments[0] == "ls-files" else "f" * 40

    monkeypatch.setattr(provenance, "_git", git)
    monkeypatch.delenv("BAGWISE_COMMIT", raising=False)
    assert collect_provenance().commit is None
    assert asked == ["ls-files"]
