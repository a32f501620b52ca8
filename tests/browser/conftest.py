"""One server with a scripted engine and a real store for all browser tests, and one visitor per test."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = "/usr/bin/chromium"
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync"]  # fmt: skip


def free_port() -> int:
    with closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        path = CHROMIUM if os.path.exists(CHROMIUM) else None
        try:
            chromium = playwright.chromium.launch(executable_path=path, args=ARGS)
        except sync_api.Error as error:
            pytest.skip(f"no chromium: {error}")
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """(backend, url) of the page."""
    from specdemo.store import Store
    from specdemo.ui.app import launch
    from tests.browser.scripted import Scripted

    store = Store(tmp_path_factory.mktemp("store") / "runs.db")
    backend, port = Scripted(store=store), free_port()
    backend.may_load.set()
    blocks = launch(backend, "127.0.0.1", port, prevent_thread_lock=True, quiet=True)
    yield backend, f"http://127.0.0.1:{port}/"
    blocks.close(verbose=False)
    store.close()


@pytest.fixture
def backend(server: Any) -> Iterator[Any]:
    """The scripted engine, as it was before the test again after it."""
    engine = server[0]
    before = {
        name: getattr(engine, name)
        for name in ("rate", "late", "fail_at", "store_problem", "hostile", "text", "plain", "checked")
    }
    yield engine
    for name, value in before.items():
        setattr(engine, name, value)


@pytest.fixture
def visit(browser: Any, server: Any) -> Iterator[Any]:
    """Opens the page for one more visitor: visit(path="", width=1200, theme="light", **context)."""
    visitors: list[Visitor] = []

    def open_page(path: str = "", width: int = 1200, height: int = 900, **context: Any) -> Visitor:
        ctx = browser.new_context(viewport={"width": width, "height": height}, **context)
        visitors.append(Visitor(ctx, server[1] + path))
        return visitors[-1]

    yield open_page
    for visitor in visitors:
        visitor.context.close()
        assert not visitor.faults, visitor.faults


class Visitor:
    """A page, and short names for what tests do with it. ``faults``: errors, dialogs and foreign requests."""

    def __init__(self, context: Any, url: str) -> None:
        self.context, self.page = context, context.new_page()
        self.faults: list[str] = []
        page = self.page
        page.on("console", lambda m: self.faults.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: self.faults.append(f"page error: {e}"))
        page.on("dialog", lambda d: (self.faults.append(f"dialog: {d.message}"), d.dismiss()))
        page.on("request", lambda r: self._request(r.url))
        page.goto(url)
        page.wait_for_selector("#view .sd")

    def _request(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.faults.append(f"foreign request: {url}")

    def set(self, **numbers: Any) -> None:
        """Open the accordion and fill in number fields by their element id."""
        if not self.page.locator("#max input").is_visible():
            self.page.get_by_text("Length, seed and stop strings").click()
        for name, value in numbers.items():
            self.page.fill(f"#{name} input[type=number]", str(value))

    def ask(self, prompt: str = "Say something", seed: int = 0, tokens: int = 128) -> None:
        self.set(max=tokens, seed=seed)
        self.page.fill("#prompt textarea", prompt)
        self.page.click("#run")

    def wait(self, state: str = "done", timeout: float = 30) -> None:
        self.page.wait_for_selector(f".sd[data-state={state}]", timeout=timeout * 1000)

    def wait_tokens(self, n: int, timeout: float = 30) -> None:
        self.page.wait_for_function(
            f"[...document.querySelectorAll('.sd-answer')].at(-1)?.dataset.n >= {n}", timeout=timeout * 1000
        )

    def done(self, timeout: float = 30) -> None:
        """Wait for the end of a run that was just asked for."""
        self.page.wait_for_function(
            """document.querySelector('.sd').dataset.state === 'done'
                 && !document.querySelector('#prompt textarea').value""",
            timeout=timeout * 1000,
        )

    def tokens(self) -> list[tuple[str, str]]:
        """(text, class of the colour) of every token of the last answer."""
        js = """[...[...document.querySelectorAll('.sd-answer')].at(-1).querySelectorAll('.tk')]
          .map(e => [e.textContent, e.classList[1]])"""
        return [tuple(pair) for pair in self.page.evaluate(js)]

    def text(self) -> str:
        return "".join(text for text, _ in self.tokens())

    def colours(self) -> dict[str, str]:
        """Class of each name in the legend."""
        js = """[...document.querySelectorAll('.sd-source')]
          .map(b => [b.querySelector('.sd-name').textContent, b.querySelector('.tk').classList[2]])"""
        return dict(self.page.evaluate(js))

    def run_id(self) -> str:
        return str(self.page.evaluate("document.querySelector('.sd').dataset.run"))

    def status(self) -> str:
        return str(self.page.inner_text(".sd-status"))

    def notices(self) -> str:
        return str(self.page.inner_text(".sd-notices"))


def sql(path: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return db.execute(query, values).fetchall()
