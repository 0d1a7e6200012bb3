"""Locks between processes that share a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock on a file or a folder while the block runs, and give whether it is ours: with `wait` it always is.

    A file that is not there is made. The system releases the lock when the process ends, however it ends.
    """
    try:
        import fcntl
    except ImportError:  # not a POSIX system: two processes may do the same work, and write the same files
        yield True
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            is_ours = True
        except BlockingIOError:
            is_ours = False
        except OSError:  # a file system without locks, or without those of folders
            is_ours = True
        yield is_ours
    finally:
        os.close(descriptor)
