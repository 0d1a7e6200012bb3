"""Downloads from a real server on this machine, with everything that goes wrong on the way."""

import gzip
import hashlib
import os
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bagwise.experiments.datasets import catalogue, load_dataset
from bagwise.experiments.datasets import download as download_module
from bagwise.experiments.datasets.download import DownloadError, download
from reference import official_files

CONTENT = bytes(range(256)) * 4000  # 1,024,000 bytes
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """What the server holds and does, and what it was asked."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    knows_ranges: bool = True
    cuts: list[int] = field(default_factory=list)  # bytes to send on the first, second, ... connection
    stall_s: float = 0.0  # before a cut
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch):
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name, wanted = self.path.lstrip("/"), self.headers["Range"]
            state.asked.append((name, wanted))
            if name not in state.files:
                self.send_error(404)
                return
            content = state.files[name]
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and state.knows_ranges else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = start + state.cuts.pop(0) if state.cuts else len(content)
            self.wfile.write(content[start:end])
            if end < len(content):
                time.sleep(state.stall_s)

        def log_message(self, format, *args):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_address[1]}"
    state.files["file"] = CONTENT
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole_under_its_name_only(server, tmp_path):
    target = tmp_path / "new" / "folder" / "file"
    download(f"{server.url}/file", target, SHA256)
    assert target.read_bytes() == CONTENT
    assert names_in(target.parent) == ["file"]
    download(f"{server.url}/file", target, SHA256)
    assert len(server.asked) == 1  # what is there is not fetched again


def test_a_cut_connection_is_taken_up_where_it_ended(server, tmp_path):
    server.cuts = [300_000, 400_000]
    download(f"{server.url}/file", tmp_path / "file", SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [None, "bytes=300000-", "bytes=700000-"]


def test_a_connection_that_stalls_is_given_up_and_taken_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download_module, "_TIMEOUT_S", 1.0)
    server.cuts, server.stall_s = [524_288], 3.0
    download(f"{server.url}/file", tmp_path / "file", SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(server.asked) == 2


def test_a_later_call_goes_on_from_what_an_earlier_one_kept(server, tmp_path):
    server.cuts = [200_000, 0]  # the second connection brings nothing: give up
    with pytest.raises(DownloadError, match=r"ended after 200000 of 1024000 bytes.* 200000 bytes .* kept in"):
        download(f"{server.url}/file", tmp_path / "file", SHA256)
    assert names_in(tmp_path) == ["file.part"]
    download(f"{server.url}/file", tmp_path / "file", SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [None, "bytes=200000-", "bytes=200000-"]


def test_endless_cuts_end_in_an_error(server, tmp_path):
    server.cuts = [1000] * 100
    with pytest.raises(DownloadError, match="ended after 5000 of 1024000 bytes"):
        download(f"{server.url}/file", tmp_path / "file", SHA256)
    assert len(server.asked) == 5


def test_a_server_without_ranges_sends_it_all_again(server, tmp_path):
    server.knows_ranges = False
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    download(f"{server.url}/file", tmp_path / "file", SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_complete_part_needs_only_its_checksum(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    download(f"{server.url}/file", tmp_path / "file", SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("kept", [b"", b"rubbish", CONTENT + b"more"])
def test_a_wrong_checksum_leaves_nothing_behind(server, tmp_path, kept):
    if kept:
        (tmp_path / "file.part").write_bytes(kept)
    expected = SHA256 if kept else "0" * 64
    with pytest.raises(DownloadError, match=f"must have SHA-256 {expected}, but what arrived has .* removed"):
        download(f"{server.url}/file", tmp_path / "file", expected)
    assert names_in(tmp_path) == []
    download(f"{server.url}/file", tmp_path / "file", SHA256)  # and the next try starts afresh
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_missing_page_says_so(server, tmp_path):
    with pytest.raises(DownloadError, match=f"{server.url}/nothing: the server answered 404 Not Found"):
        download(f"{server.url}/nothing", tmp_path / "file", SHA256)
    assert names_in(tmp_path) == []


def test_no_network_says_so(tmp_path):
    with pytest.raises(DownloadError, match=r"http://127.0.0.1:9/file: no connection \(.*refused"):
        download("http://127.0.0.1:9/file", tmp_path / "file", SHA256)
    assert names_in(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_says_so(server, tmp_path):
    (tmp_path / "file.part").symlink_to("/dev/full")
    with pytest.raises(DownloadError, match=r"cannot write .*file: No space left on device\. Make room"):
        download(f"{server.url}/file", tmp_path / "file", SHA256)
    assert not (tmp_path / "file").exists()


def test_a_disk_that_fills_up_midway_keeps_what_fits(server, tmp_path, monkeypatch):
    room = 3 * download_module._BLOCK_BYTES
    plain_open = Path.open

    def open_on_a_small_disk(path, mode="r"):
        handle = plain_open(path, mode)
        if mode not in ("ab", "wb"):
            return handle
        plain_write = handle.write

        class SmallDisk:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                handle.close()

            def write(self, block):
                if handle.tell() + len(block) > room:
                    raise OSError(28, os.strerror(28))
                return plain_write(block)

        return SmallDisk()

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_on_a_small_disk)
        with pytest.raises(DownloadError, match="No space left on device"):
            download(f"{server.url}/file", tmp_path / "file", SHA256)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:room]
    download(f"{server.url}/file", tmp_path / "file", SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked[-1] == ("file", f"bytes={room}-")


def test_a_folder_that_cannot_be_made_says_so(server, tmp_path):
    (tmp_path / "occupied").write_text("a file where the folder should be")
    with pytest.raises(DownloadError, match=r"cannot write .*occupied/file"):
        download(f"{server.url}/file", tmp_path / "occupied" / "file", SHA256)


def test_of_many_that_want_a_file_one_fetches_it(server, tmp_path):
    calls = [
        threading.Thread(target=download, args=(f"{server.url}/file", tmp_path / "file", SHA256)) for _ in range(4)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(server.asked) == 1


# load_dataset with nothing on disk


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def stand_in_cifar(server: Server) -> catalogue.OfficialDataset:
    """CIFAR-10 with two training images and one for testing, on the server as an archive."""
    real = catalogue.CATALOGUE["cifar10"].editions[0]
    contents = {"train.bin": official_files.cifar_binary([(3,), (9,)]), "test.bin": official_files.cifar_binary([(5,)])}
    archive = official_files.tar_gz({f"stand-in/{name}": content for name, content in contents.items()})
    server.files["stand-in.tar.gz"] = archive
    train, test = (catalogue.OfficialFile(name, sha256(content), len(content)) for name, content in contents.items())
    edition = catalogue.Edition("stand-in", "stand-in.tar.gz", (train,), (test,), real.decode)
    url = f"{server.url}/stand-in.tar.gz"
    download = catalogue.Download(url, "stand-in.tar.gz", len(archive), sha256(archive))
    return catalogue.OfficialDataset("cifar10", ("a", "b"), (edition,), (download,))


def test_a_data_set_is_downloaded_once_and_then_read(server, tmp_path, monkeypatch):
    monkeypatch.setitem(catalogue.CATALOGUE, "cifar10", stand_in_cifar(server))
    for _ in range(2):
        data = load_dataset("cifar10", tmp_path)
        assert data.train_labels.tolist() == [3, 9]
        assert data.test_labels.tolist() == [5]
    assert [name for name, _ in server.asked] == ["stand-in.tar.gz"]


def test_the_cache_is_made_when_it_is_first_needed(server, tmp_path, monkeypatch):
    monkeypatch.delenv("BAGWISE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(catalogue.CATALOGUE, "cifar10", stand_in_cifar(server))
    load_dataset("cifar10")
    assert names_in(tmp_path / "cache" / "bagwise") == ["stand-in.tar.gz"]


def test_without_a_network_the_message_says_which_file_to_put_where(server, tmp_path, monkeypatch):
    official = stand_in_cifar(server)
    server.files.clear()
    monkeypatch.setitem(catalogue.CATALOGUE, "cifar10", official)
    with pytest.raises(FileNotFoundError) as caught:
        load_dataset("cifar10", tmp_path)
    message = str(caught.value)
    assert f"cifar10 is not in {tmp_path} (looked for stand-in, stand-in.tar.gz)" in message
    assert "the server answered 404" in message
    assert f"get {server.url}/stand-in.tar.gz (" in message
    assert f"put it at {tmp_path / 'stand-in.tar.gz'}" in message
    assert "BAGWISE_DATA" in message


def test_a_data_set_of_several_files_is_completed(server, tmp_path, monkeypatch):
    """Fashion-MNIST: a download that broke between two files goes on with the missing ones."""
    contents = {
        "train-images": official_files.idx([2, 4, 4], range(32)),
        "train-labels": official_files.idx([2], [7, 1]),
        "test-images": official_files.idx([1, 4, 4], range(16)),
        "test-labels": official_files.idx([1], [9]),
    }
    files = [catalogue.OfficialFile(name, sha256(content), len(content)) for name, content in contents.items()]
    zipped = {f"{name}.gz": gzip.compress(content) for name, content in contents.items()}
    official = catalogue.OfficialDataset(
        name="fashion-mnist",
        class_names=tuple("abcdefghij"),
        editions=(
            catalogue.Edition(
                "fashion-mnist",
                None,
                tuple(files[:2]),
                tuple(files[2:]),
                catalogue.CATALOGUE["fashion-mnist"].editions[0].decode,
            ),
        ),
        downloads=tuple(
            catalogue.Download(f"{server.url}/{name}", f"fashion-mnist/{name}", len(content), sha256(content))
            for name, content in zipped.items()
        ),
    )
    monkeypatch.setitem(catalogue.CATALOGUE, "fashion-mnist", official)
    server.files.update(zipped)
    withheld = server.files.pop("test-images.gz")
    with pytest.raises(FileNotFoundError, match="fashion-mnist lacks test-images, test-labels"):
        load_dataset("fashion-mnist", tmp_path)
    server.files["test-images.gz"] = withheld
    server.asked.clear()
    assert load_dataset("fashion-mnist", tmp_path).train_labels.tolist() == [7, 1]
    assert [name for name, _ in server.asked] == ["test-images.gz", "test-labels.gz"]
