"""Builds the page and serves it. Loading the model starts at once, behind the page."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # nothing on the page asks another host for anything

import gradio as gr  # noqa: E402  # reads that switch when it is imported

from specdemo.ui.backend import Backend  # noqa: E402
from specdemo.ui.generate import STATIC, Generate  # noqa: E402
from specdemo.ui.lane import Lane  # noqa: E402

FONT, MONO = ["system-ui", "sans-serif"], ["ui-monospace", "monospace"]


def build(backend: Backend, lane: Lane | None = None) -> gr.Blocks:
    """The page: one tab per file of this package."""
    lane = lane or Lane()
    with gr.Blocks(title="specdemo", analytics_enabled=False, delete_cache=(3600, 86400)) as blocks, gr.Tabs():
        with gr.Tab("Generate", id="generate"):
            Generate(backend, lane).build()
    return blocks.queue(max_size=64)


def launch(backend: Backend, host: str | None = None, port: int | None = None, **options: Any) -> gr.Blocks:
    """Load the default pool in the background and serve the page.

    Args:
        backend: the rest of the package.
        host, port: where to listen; None is Gradio's default (this machine only, first free port from 7860).
        options: further arguments of ``gr.Blocks.launch``, such as ``prevent_thread_lock`` or ``share``.
    """
    lane = Lane()
    lane.submit(lambda _: backend.load(backend.pools()[0].name) or ())  # type: ignore[func-returns-value]
    blocks = build(backend, lane)
    blocks.launch(
        server_name=host,
        server_port=port,
        theme=gr.themes.Default(font=FONT, font_mono=MONO),
        css_paths=[STATIC / "style.css"],
        js=(STATIC / "page.js").read_text("utf-8"),
        run_history=False,  # it would keep every answer a second time, in the visitor's browser
        ssr_mode=False,
        footer_links=["settings"],
        state_session_capacity=500,
        **options,
    )
    return blocks
