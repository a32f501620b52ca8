"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # one test process per core: threads would only wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of 64 dimensions as a folder: set SPECDEMO_MODEL to it and the pool "copying" is on this model."""
    from specdemo.convert import convert
    from tests.tiny_gguf import write_gguf

    folder = tmp_path_factory.mktemp("tiny-model")
    convert(write_gguf(folder.parent / "tiny-model.gguf"), folder, progress=False)
    return folder
