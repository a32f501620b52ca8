"""Fixtures for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of 64 dimensions as a folder: set SPECDEMO_MODEL to it and the pool "copying" is on this model."""
    from specdemo.convert import convert
    from tests.tiny_gguf import write_gguf

    folder = tmp_path_factory.mktemp("tiny-model")
    convert(write_gguf(folder.parent / "tiny-model.gguf"), folder, progress=False)
    return folder
