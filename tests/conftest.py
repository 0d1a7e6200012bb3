"""Settings for the whole suite."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("bagwise", deadline=None, derandomize=True, database=None)
settings.load_profile("bagwise")
torch.set_num_threads(1)  # the suite runs in parallel processes; tests are small


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(skip)
