"""Fetch one file: resumable, checked, and either complete under its name or not there at all."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from bagwise.experiments.locking import locked

_BLOCK_BYTES = 1 << 18
_TIMEOUT_S = 30.0
_MAX_CONNECTIONS = 5


class DownloadError(OSError):
    """A file could not be fetched; the message says why and what is kept."""


class _ConnectionLost(Exception):
    """The network failed; another connection may go on from there."""


def download(url: str, target: Path, sha256: str) -> None:
    """Fetch `url` to `target`, whose SHA-256 must be `sha256`.

    What has arrived waits in `target.part`, and a later call asks the server for the rest only. The file
    takes its name when it is complete and its checksum is right. Of several processes that want the same
    file (the shards of a sweep), one fetches it while the others wait.
    """
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent, wait=True):
            if target.exists():
                return
            with _progress_bar(target.name) as show:
                _receive_all(url, part, show)
            _check(url, part, sha256)
            os.replace(part, target)
    except DownloadError:
        raise
    except OSError as error:  # the disk: errors of the network never come this far
        raise DownloadError(
            f"cannot write {target}: {error.strerror or error}. Make room, or name a folder that can be "
            "written to; what has arrived so far is kept, and the next try goes on from there."
        ) from error


@contextlib.contextmanager
def _progress_bar(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar on a terminal; give the function that moves it to `(bytes so far, bytes in all)`."""
    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress("{task.description}", *columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _receive_all(url: str, part: Path, show: Callable[[int, int | None], None]) -> None:
    """Complete `part`, over several connections as long as each of them brings something."""
    for connection in range(1, _MAX_CONNECTIONS + 1):
        before = _size(part)
        try:
            return _receive(url, part, show)
        except _ConnectionLost as error:
            size = _size(part)
            if size <= before or connection == _MAX_CONNECTIONS:
                kept = f" The {size} bytes that arrived are kept in {part}." if size else ""
                raise DownloadError(f"{url}: {error}.{kept}") from error


def _receive(url: str, part: Path, show: Callable[[int, int | None], None]) -> None:
    """Append to `part` what one connection brings; raise `_ConnectionLost` if that is not the rest."""
    done = _size(part)
    response = _connect(url, done)
    if response is None:
        return
    with response:
        if response.status != http.client.PARTIAL_CONTENT:
            done = 0  # the server knows no ranges and sends it all again
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        with part.open("ab" if done else "wb") as file:
            while block := _next_block(response):
                file.write(block)
                done += len(block)
                show(done, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done < total:
        raise _ConnectionLost(f"the connection ended after {done} of {total} bytes")


def _connect(url: str, offset: int) -> http.client.HTTPResponse | None:
    """Ask for `url` from byte `offset` on; None if there is nothing after it."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={offset}-"} if offset else {})
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return None  # what we have is all of it, or wrong: the checksum decides
        raise DownloadError(f"{url}: the server answered {error.code} {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        raise _ConnectionLost(f"no connection ({getattr(error, 'reason', error)})") from error


def _next_block(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(_BLOCK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _ConnectionLost(f"the connection broke ({error})") from error


def _check(url: str, part: Path, sha256: str) -> None:
    """Remove `part` and raise unless it has the right checksum."""
    with part.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        part.unlink()
        raise DownloadError(
            f"{url} must have SHA-256 {sha256}, but what arrived has {found}; it was removed. "
            "Try again; if this repeats, the server or something on the way alters the file."
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
