"""The readers of the official formats, on small files written by `reference.official_files`."""

import gzip
import os
import pickle
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bagwise.experiments.datasets.cifar import decode_cifar_binary, parse_cifar_binary, parse_cifar_python
from bagwise.experiments.datasets.idx import decode_idx, parse_idx
from bagwise.experiments.datasets.pickled_arrays import load_pickled_arrays
from bagwise.experiments.datasets.source import SourceFile, read_archive, read_plain
from reference import official_files as official

shapes = st.lists(st.integers(0, 4), min_size=1, max_size=4)


def file(content: bytes) -> SourceFile:
    return SourceFile("some/file", content)


def parse_python(content: bytes):
    return parse_cifar_python(file(content), label_key=b"labels", num_classes=10)


# IDX


@given(shape=shapes)
def test_idx_round_trip(shape):
    values = [(3 * place + 1) % 256 for place in range(int(np.prod(shape)))]
    array = parse_idx(file(official.idx(shape, values)))
    assert array.shape == tuple(shape)
    assert array.dtype == np.uint8
    assert array.ravel().tolist() == values


@given(shape=st.lists(st.integers(1, 3), min_size=1, max_size=3), data=st.data())
def test_idx_cut_or_extended_anywhere_is_refused(shape, data):
    content = official.idx(shape, range(int(np.prod(shape))))
    cut = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(ValueError, match=r"^some/file: .*[Dd]ownload"):
        parse_idx(file(content[:cut]))
    with pytest.raises(ValueError, match=f"so {len(content)} bytes, but the file has {len(content) + 1}"):
        parse_idx(file(content + b"\0"))


@pytest.mark.parametrize("header", [b"\1\0\x08\1", b"\0\0\x0d\1", b"\0\0\x08\0"])
def test_idx_with_another_magic_is_refused(header):
    with pytest.raises(ValueError, match="some/file: "):
        parse_idx(file(header + b"\0\0\0\1" + b"\0"))


def test_idx_header_that_promises_more_than_memory_is_refused():
    with pytest.raises(ValueError, match="but the file has 17"):
        parse_idx(file(official.idx([2**32 - 1] * 3, [0])))


def test_idx_images_and_labels_make_a_split():
    image_file = file(official.idx([3, 2, 2], range(12)))
    images, labels = decode_idx([image_file, file(official.idx([3], [9, 0, 4]))], num_classes=10)
    assert images.tolist() == np.arange(12).reshape(3, 1, 2, 2).tolist()
    assert labels.tolist() == [9, 0, 4]
    assert labels.dtype == np.int64
    with pytest.raises(ValueError, match="of the same length"):
        decode_idx([image_file, file(official.idx([2], [9, 0]))], num_classes=10)
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.9, but it holds 10"):
        decode_idx([image_file, file(official.idx([3], [9, 0, 10]))], num_classes=10)


# CIFAR, binary version


@pytest.mark.parametrize(("label_bytes", "given_labels"), [(1, [(3,), (9,)]), (2, [(19, 3), (4, 9)])])
def test_cifar_binary_finds_every_pixel_and_the_fine_label(label_bytes, given_labels):
    content = official.cifar_binary(given_labels)
    images, labels = parse_cifar_binary(file(content), label_bytes=label_bytes, num_classes=10)
    assert labels.tolist() == [3, 9]
    assert labels.dtype == np.int64
    assert images.shape == (2, 3, 32, 32)
    for image, channel, row, column in [(0, 0, 0, 0), (0, 1, 0, 5), (1, 2, 31, 31), (1, 0, 17, 4)]:
        place = image * (label_bytes + 3072) + label_bytes + channel * 1024 + row * 32 + column
        assert images[image, channel, row, column] == content[place]


def test_cifar_binary_files_follow_one_another_in_writable_memory():
    files = [file(official.cifar_binary([(label,)])) for label in (1, 2)]
    images, labels = decode_cifar_binary(files, label_bytes=1, num_classes=10)
    assert labels.tolist() == [1, 2]
    assert images.flags.writeable
    assert labels.flags.writeable


@pytest.mark.parametrize("content", [b"", official.cifar_binary([(1,), (2,)])[:-1]])
def test_cifar_binary_of_a_wrong_size_is_refused(content):
    with pytest.raises(ValueError, match="some/file: the size must be a multiple of 3073"):
        parse_cifar_binary(file(content), label_bytes=1, num_classes=10)


def test_cifar_binary_with_a_label_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.9, but it holds 200"):
        parse_cifar_binary(file(official.cifar_binary([(200,)])), label_bytes=1, num_classes=10)


# CIFAR, python version


def test_cifar_python_equals_the_binary_version():
    images, labels = parse_python(official.cifar_python(b"labels", [3, 9]))
    same_images, same_labels = parse_cifar_binary(
        file(official.cifar_binary([(3,), (9,)])), label_bytes=1, num_classes=10
    )
    assert np.array_equal(images, same_images)
    assert np.array_equal(labels, same_labels)


def test_the_stand_in_pickle_is_what_numpy_reads_too():
    """Otherwise the tests here would only show that the reader agrees with its own author."""
    array = official.byte_array(2, bytes(range(6)))
    assert pickle.loads(b"\x80\x02" + array + b".", encoding="bytes").tolist() == [[0, 1, 2], [3, 4, 5]]


class RunsCommand:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_runs_a_command_is_refused_and_does_not_run_it(tmp_path, protocol):
    proof = tmp_path / "it-ran"
    content = pickle.dumps({"data": RunsCommand(f"touch {proof}")}, protocol=protocol)
    with pytest.raises(ValueError, match=r"some/file: refused .* asks for \w+\.system, which no CIFAR file"):
        parse_python(content)
    assert not proof.exists()
    pickle.loads(content)  # it would have run
    assert proof.exists()


@pytest.mark.parametrize(
    "name",
    [
        *(b"builtins\neval", b"builtins\ngetattr", b"numpy\nload", b"numpy.core.multiarray\nscalar"),
        *(b"numpy\nndarray.tofile", b"copyreg\n_reconstructor", b"_codecs\nencode"),
    ],
)
def test_no_other_name_is_admitted(name):
    asked = name.decode().replace("\n", ".")
    with pytest.raises(ValueError, match=f"asks for {asked}"):
        load_pickled_arrays(file(b"\x80\x02}U\x04datac" + name + b"\ns."))


def test_the_admitted_names_cannot_be_tampered_with():
    """BUILD on a class or function would set its attributes for everyone after."""
    for name in (b"numpy\nndarray", b"numpy\ndtype", b"numpy.core.multiarray\n_reconstruct"):
        with pytest.raises(ValueError, match="refused"):
            load_pickled_arrays(file(b"\x80\x02}U\x04datac" + name + b"\n}U\x05stateK\x01sbs."))
    assert parse_python(official.cifar_python(b"labels", [3]))[1].tolist() == [3]


@pytest.mark.parametrize("code", [b"O8", b"f8", b"V1"])
def test_arrays_of_anything_but_bytes_are_refused(code):
    content = b"\x80\x02}U\x04data" + official.byte_array(1, bytes(3072), code=code) + b"s."
    with pytest.raises(ValueError, match="not one of plain bytes"):
        load_pickled_arrays(file(content))


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x02.", b"not a pickle", b"\x80\x02]."], ids=["empty", "bare", "text", "list"]
)
def test_what_is_not_a_pickled_dict_is_refused(content):
    with pytest.raises(ValueError, match="some/file: refused as a pickle"):
        parse_python(content)


@given(data=st.data())
def test_a_cut_pickle_is_refused(data):
    content = official.cifar_python(b"labels", [3])
    cut = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(ValueError, match="some/file: "):
        parse_python(content[:cut])


def test_pickles_with_other_fields_or_labels_are_refused():
    with pytest.raises(ValueError, match="must hold an array b'data' and a list b'labels'"):
        parse_python(official.cifar_python(b"fine_labels", [3]))
    with pytest.raises(ValueError, match=r"one label in 0\.\.9"):
        parse_python(official.cifar_python(b"labels", [3, 10]))
    short = b"\x80\x02}(U\x06labels](K\x01eU\x04data" + official.byte_array(1, bytes(10)) + b"u."
    with pytest.raises(ValueError, match="one row of 3072 pixels"):
        parse_python(short)


# gzip and tar


def test_plain_and_zipped_files_read_alike(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"content"))
    assert read_plain(tmp_path / "a").content == read_plain(tmp_path / "a.gz").content == b"content"


def test_a_damaged_gzip_file_is_refused(tmp_path):
    path = tmp_path / "a.gz"
    whole = gzip.compress(bytes(range(256)) * 50)
    for damaged in (whole[:-20], whole[:40] + b"\xff\xff\xff" + whole[43:], whole[:-8] + bytes(8)):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"{path}: the gzip stream is damaged .* download it again"):
            read_plain(path)


def test_an_archive_gives_its_members_and_writes_nothing(tmp_path):
    (tmp_path / "inner").mkdir()
    path = tmp_path / "inner" / "a.tar.gz"
    hostile = {"../escaped": b"x", f"{tmp_path}/absolute": b"x", "folder/other": b"x"}
    path.write_bytes(official.tar_gz({**hostile, "folder/b": b"second", "folder/a": b"first"}))
    found = read_archive(path, ["folder/a", "folder/b"])
    assert {name: member.content for name, member in found.items()} == {
        "folder/a": b"first",
        "folder/b": b"second",
    }
    assert found["folder/a"].origin == f"{path}:folder/a"
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["a.tar.gz"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_a_link_in_place_of_a_member_is_not_followed(tmp_path, kind):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    link = tarfile.TarInfo("folder/a")
    link.type, link.linkname = kind, str(secret)
    path = tmp_path / "a.tar.gz"
    path.write_bytes(official.tar_gz({"folder/a": link}))
    with pytest.raises(ValueError, match="must hold folder/a, but does not"):
        read_archive(path, ["folder/a"])


def test_a_damaged_archive_is_refused(tmp_path):
    path = tmp_path / "a.tar.gz"
    whole = official.tar_gz({"folder/a": bytes(range(256)) * 50})
    for damaged in (b"", b"no archive", whole[:-100], whole[:60] + b"\xff\xff\xff" + whole[63:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{path}: the archive"):
            read_archive(path, ["folder/a"])
