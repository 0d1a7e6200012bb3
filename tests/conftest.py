"""Settings for the whole suite."""

import os
import signal

import pytest
import torch
from hypothesis import settings

settings.register_profile("bagwise", deadline=None, derandomize=True, database=None)
settings.load_profile("bagwise")
torch.set_num_threads(1)  # the suite runs in parallel processes; tests are small

# Without a GPU the kernels run in Triton's interpreter, which has to be asked for before anybody imports Triton, and
# parts of torch do that.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def ctrl_c_is_heard():
    """Also where the tests run in the background, since a shell lets what it starts there ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
