"""The page on the embedded model, from prompt to database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Visitor, free_port, sql

pytestmark = [pytest.mark.browser, pytest.mark.model]


@pytest.fixture(scope="module")
def page_of_the_model(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Visitor, Path]]:
    from specdemo.store import Store
    from specdemo.ui.app import launch
    from specdemo.ui.live import Live

    path, port = tmp_path_factory.mktemp("store") / "runs.db", free_port()
    store = Store(path)
    blocks = launch(Live(store, ["embedded"]), "127.0.0.1", port, prevent_thread_lock=True, quiet=True)
    visitor = Visitor(browser.new_context(), f"http://127.0.0.1:{port}/")
    yield visitor, path
    visitor.context.close()
    blocks.close(verbose=False)
    store.close()
    assert not visitor.faults, visitor.faults


def test_prompt_stream_check_and_stored_run(page_of_the_model: tuple[Visitor, Path]) -> None:
    v, path = page_of_the_model
    v.page.check("#check input")
    v.ask(
        "Repeat this line three times: one two three four five", tokens=48
    )  # at once: it may have to wait for loading
    v.wait_tokens(5, timeout=300)
    v.done(timeout=300)
    rows = sql(path, "SELECT piece, drafter FROM tokens WHERE run_id = ? ORDER BY token", v.run_id())
    colours = v.colours()
    assert v.tokens() == [(piece, colours[drafter or "target"]) for piece, drafter in rows]
    [(text, status, check, pool)] = sql(
        path, "SELECT text, status, check_result, pool FROM runs WHERE id = ?", v.run_id()
    )
    assert (v.text(), status, pool) == (text, "done", "embedded")
    assert '"identical":true' in check
    assert "Identical to plain decoding" in v.notices()
    assert "×" in v.page.inner_text(".sd-facts")
    assert any(drafter for _, drafter in rows)
