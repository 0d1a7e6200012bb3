"""Fixtures of the tests of tables."""

import resource
from contextlib import contextmanager

import pytest


@pytest.fixture
def full_disk():
    """A context in which no file can grow beyond 64 KiB, as on a full disk."""

    @contextmanager
    def limited():
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited
