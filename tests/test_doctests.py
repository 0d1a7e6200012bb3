"""The examples in docstrings print what they say."""

import doctest
import importlib
import pkgutil

import pytest

import bagwise

# Triton is not there on a machine without CUDA; __main__ would run the command line
_SKIPPED = ("bagwise.kernels.", "bagwise.__main__")

MODULES = [
    module.name
    for module in pkgutil.walk_packages(bagwise.__path__, "bagwise.")
    if not module.name.startswith(_SKIPPED)
]


def test_modules_are_found():
    assert "bagwise.functional.proportion" in MODULES


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0
