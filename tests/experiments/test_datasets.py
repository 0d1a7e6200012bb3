"""load_dataset: the digits, where files are looked for, and which are refused."""

import gzip
import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bagwise.experiments.datasets import DATASET_NAMES, load_dataset
from bagwise.experiments.datasets.catalogue import CATALOGUE, OfficialDataset
from bagwise.experiments.datasets.dataset import Dataset
from reference import official_files

BINARY = {
    **{f"data_batch_{n}.bin": official_files.cifar_binary([(n,), (n + 1,)]) for n in range(1, 6)},
    "test_batch.bin": official_files.cifar_binary([(9,)]),
}
PYTHON = {
    **{f"data_batch_{n}": official_files.cifar_python(b"labels", [n, n + 1]) for n in range(1, 6)},
    "test_batch": official_files.cifar_python(b"labels", [9]),
}
TRAIN_LABELS = [1, 2, 2, 3, 3, 4, 4, 5, 5, 6]


def with_contents(official: OfficialDataset, contents: dict[str, bytes]) -> OfficialDataset:
    """`official` with the checksums of small stand-in files, and nowhere to download from."""

    def stand_in(file):
        content = contents[file.name]
        size = None if file.size is None else len(content)
        return replace(file, sha256=hashlib.sha256(content).hexdigest(), size=size)

    editions = tuple(
        replace(edition, train=tuple(map(stand_in, edition.train)), test=tuple(map(stand_in, edition.test)))
        for edition in official.editions
    )
    downloads = tuple(replace(item, url="http://127.0.0.1:9/nothing") for item in official.downloads)
    return replace(official, editions=editions, downloads=downloads, system_folders=())


@pytest.fixture(autouse=True)
def small_official_files(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("BAGWISE_DATA", raising=False)
    monkeypatch.setitem(CATALOGUE, "cifar10", with_contents(CATALOGUE["cifar10"], BINARY | PYTHON))


def write(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def archive_of(folder: str, contents: dict[str, bytes]) -> bytes:
    return official_files.tar_gz({f"{folder}/{name}": content for name, content in contents.items()})


def check_is_stand_in(data: Dataset) -> None:
    assert data.name == "cifar10"
    assert data.train_labels.tolist() == TRAIN_LABELS
    assert data.test_labels.tolist() == [9]
    assert data.train_images.dtype == data.test_images.dtype == torch.uint8
    for batch in range(5):
        for image in range(2):
            pixels = data.train_images[2 * batch + image].flatten().tolist()
            assert bytes(pixels) == official_files.cifar_pixels(image)


# digits


def test_digits():
    data = load_dataset("digits")
    assert data.train_images.shape == (1442, 1, 8, 8)
    assert data.test_images.shape == (355, 1, 8, 8)
    assert data.train_images.dtype == torch.uint8
    assert data.train_labels.dtype == torch.int64
    assert (data.train_images.min(), data.train_images.max()) == (0, 255)
    assert data.class_names == tuple("0123456789")
    assert (data.num_classes, data.input_shape) == (10, (1, 8, 8))


def test_digits_split_is_stratified_and_complete():
    from sklearn.datasets import load_digits

    data = load_dataset("digits")
    in_all = data.train_labels.bincount() + data.test_labels.bincount()
    assert torch.equal(data.test_labels.bincount(), in_all // 5)
    images = torch.cat([data.train_images, data.test_images]).flatten(1)
    original = np.sort(load_digits().data, axis=None)
    assert np.array_equal(np.sort((images.numpy() / 255 * 16).round(), axis=None), original)


def test_digits_are_the_same_every_time():
    first, again = load_dataset("digits"), load_dataset("digits")
    assert torch.equal(first.train_images, again.train_images)
    digest = hashlib.sha256(first.train_images.numpy().tobytes() + first.test_labels.numpy().tobytes())
    assert digest.hexdigest() == "8f2506c4980d76c91d0a3f127073994abbe0e90368cabc02ac39527649718c3d"


def test_pixel_statistics_are_those_of_the_training_images():
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (20, 3, 5, 4), dtype=np.uint8)
    labels = np.zeros(20, dtype=np.int64)
    data = Dataset.from_arrays("x", (images, labels), (images[:2] * 0, labels[:2]), ("a",))
    scaled = images.astype(np.float64) / 255
    np.testing.assert_allclose(data.pixel_mean, scaled.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(data.pixel_std, scaled.std((0, 2, 3)), rtol=1e-6)


# where files are looked for


@pytest.mark.parametrize(
    "layout", ["binary folder", "python folder", "binary archive", "python archive", "zipped files"]
)
def test_every_layout_gives_the_same_data(tmp_path, layout):
    if layout == "binary folder":
        write(tmp_path / "cifar-10-batches-bin", BINARY)
    elif layout == "python folder":
        write(tmp_path / "cifar-10-batches-py", PYTHON)
    elif layout == "binary archive":
        write(tmp_path, {"cifar-10-binary.tar.gz": archive_of("cifar-10-batches-bin", BINARY)})
    elif layout == "python archive":
        write(tmp_path, {"cifar-10-python.tar.gz": archive_of("cifar-10-batches-py", PYTHON)})
    else:
        zipped = {f"{name}.gz": gzip.compress(content) for name, content in BINARY.items()}
        write(tmp_path / "cifar-10-batches-bin", zipped)
    check_is_stand_in(load_dataset("cifar10", tmp_path))
    check_is_stand_in(load_dataset("cifar10", str(tmp_path)))


def test_the_inner_folder_itself_may_be_named(tmp_path):
    check_is_stand_in(load_dataset("cifar10", write(tmp_path / "cifar-10-batches-bin", BINARY)))
    check_is_stand_in(load_dataset("cifar10", write(tmp_path / "renamed", PYTHON)))


def test_the_argument_comes_before_the_environment_before_the_cache(tmp_path, monkeypatch):
    full = write(tmp_path / "full" / "cifar-10-batches-bin", BINARY).parent
    empty = write(tmp_path / "empty", {})
    monkeypatch.setenv("BAGWISE_DATA", str(full))
    check_is_stand_in(load_dataset("cifar10"))
    with pytest.raises(FileNotFoundError, match=f"not in {empty}"):
        load_dataset("cifar10", empty)
    monkeypatch.setenv("BAGWISE_DATA", str(empty))
    check_is_stand_in(load_dataset("cifar10", full))
    monkeypatch.delenv("BAGWISE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / "cache" / "bagwise" / "cifar-10-batches-bin", BINARY)
    check_is_stand_in(load_dataset("cifar10"))


def test_a_package_of_the_system_is_found(tmp_path, monkeypatch):
    system = write(tmp_path / "system", BINARY)
    official = replace(CATALOGUE["cifar10"], system_folders=(str(system),))
    monkeypatch.setitem(CATALOGUE, "cifar10", official)
    check_is_stand_in(load_dataset("cifar10", write(tmp_path / "empty", {})))


def test_an_incomplete_folder_does_not_hide_a_complete_archive(tmp_path):
    write(tmp_path / "cifar-10-batches-bin", {"test_batch.bin": BINARY["test_batch.bin"]})
    write(tmp_path, {"cifar-10-binary.tar.gz": archive_of("cifar-10-batches-bin", BINARY)})
    check_is_stand_in(load_dataset("cifar10", tmp_path))


# what is refused


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'cifar10'"):
        load_dataset("cifar-10")


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_a_folder_that_does_not_exist_is_an_error_not_a_download(tmp_path, monkeypatch, how):
    missing = tmp_path / "no-such-folder"
    if how == "environment":
        monkeypatch.setenv("BAGWISE_DATA", str(missing))
    who = r"the argument \(--data\)" if how == "argument" else "BAGWISE_DATA"
    with pytest.raises(FileNotFoundError, match=f"{who} names {missing}, which does not exist"):
        load_dataset("cifar10", missing if how == "argument" else None)
    assert not missing.exists()


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        load_dataset("cifar10", tmp_path / "file")


def test_an_incomplete_folder_says_what_it_lacks(tmp_path):
    folder = write(tmp_path / "cifar-10-batches-bin", BINARY)
    (folder / "data_batch_4.bin").unlink()
    for named in (tmp_path, folder):
        with pytest.raises(FileNotFoundError, match=rf"{folder} lacks data_batch_4\.bin\)"):
            load_dataset("cifar10", named)


def test_a_cut_file_is_refused(tmp_path):
    folder = write(tmp_path / "cifar-10-batches-bin", BINARY)
    (folder / "data_batch_3.bin").write_bytes(BINARY["data_batch_3.bin"][:3073])
    with pytest.raises(ValueError, match=r"data_batch_3\.bin: the official file has 6146 bytes.* has 3073\."):
        load_dataset("cifar10", tmp_path)


@pytest.mark.parametrize("contents", [BINARY, PYTHON], ids=["binary", "python"])
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
def test_one_altered_bit_is_refused(tmp_path, contents, packed):
    edition = CATALOGUE["cifar10"].editions[0 if contents is BINARY else 1]
    name = edition.train[1].name
    altered = bytearray(contents[name])
    altered[-2000] ^= 1  # a pixel, so that the file is well formed
    contents = {**contents, name: bytes(altered)}
    if packed:
        assert edition.archive
        write(tmp_path, {edition.archive: archive_of(edition.folder, contents)})
    else:
        write(tmp_path / edition.folder, contents)
    expected, found = edition.train[1].sha256, hashlib.sha256(altered).hexdigest()
    with pytest.raises(ValueError, match=f"{name}: the official file has SHA-256 {expected}.* has {found}"):
        load_dataset("cifar10", tmp_path)


def test_another_order_in_circulation_is_accepted(tmp_path, monkeypatch):
    reordered = {**BINARY, "test_batch.bin": official_files.cifar_binary([(4,)])}
    edition = CATALOGUE["cifar10"].editions[0]
    also = hashlib.sha256(reordered["test_batch.bin"]).hexdigest()
    test = (replace(edition.test[0], also=also),)
    official = replace(CATALOGUE["cifar10"], editions=(replace(edition, test=test),))
    monkeypatch.setitem(CATALOGUE, "cifar10", official)
    write(tmp_path / "cifar-10-batches-bin", reordered)
    assert load_dataset("cifar10", tmp_path).test_labels.tolist() == [4]


# the catalogue


def test_the_catalogue_holds_every_name_and_whole_checksums():
    assert {"digits", *CATALOGUE} == set(DATASET_NAMES)
    for official in CATALOGUE.values():
        sums = [item.sha256 for item in official.downloads]
        sums += [file.sha256 for edition in official.editions for file in (*edition.train, *edition.test)]
        assert len(set(sums)) == len(sums)
        assert all(len(bytes.fromhex(checksum)) == 32 for checksum in sums)
    assert [len(CATALOGUE[name].class_names) for name in ("cifar10", "cifar100", "fashion-mnist")] == [10, 100, 10]
    assert list(CATALOGUE["cifar100"].class_names) == sorted(CATALOGUE["cifar100"].class_names)


@pytest.mark.skipif(
    not Path("/usr/share/datasets/fashion-mnist").is_dir(), reason="needs Debian's dataset-fashion-mnist"
)
def test_the_real_fashion_mnist(tmp_path):
    data = load_dataset("fashion-mnist", tmp_path)
    assert data.train_images.shape == (60_000, 1, 28, 28)
    assert data.test_labels.bincount().tolist() == [1000] * 10
    assert data.pixel_mean.item() == pytest.approx(0.2860, abs=1e-4)
    assert data.pixel_std.item() == pytest.approx(0.3530, abs=1e-4)


def test_the_names_are_known_without_torch():
    """The command line lists them in its help."""
    code = "import sys, bagwise.experiments.datasets as d; assert d.DATASET_NAMES; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
