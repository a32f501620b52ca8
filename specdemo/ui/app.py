"""Builds the page and serves it. Loading the model starts at once, behind the page."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # nothing on the page asks another host for anything

import gradio as gr  # reads that switch when it is imported

from specdemo.ui.backend import Backend
from specdemo.ui.generate import STATIC, Generate
from specdemo.ui.lane import Lane

HEADER = (
    "<h1>specdemo</h1><p>A large model answers, a team of drafters speeds it up. The text stays the model's own, token "
    "for token; the colours say who proposed each token first.</p>"
)


def build(backend: Backend, lane: Lane | None = None) -> gr.Blocks:
    """The page: one tab per file of this package."""
    lane = lane or Lane()
    with gr.Blocks(title="specdemo", analytics_enabled=False, delete_cache=(3600, 86400)) as blocks:
        gr.HTML(HEADER, apply_default_css=False, elem_id="header")
        with gr.Tabs(), gr.Tab("Generate", id="generate"):
            Generate(backend, lane).build(blocks)
    return blocks.queue(max_size=64)


def launch(backend: Backend, host: str | None = None, port: int | None = None, **options: Any) -> gr.Blocks:
    """Load the default pool in the background and serve the page.

    Args:
        backend: the rest of the package.
        host, port: where to listen; None is Gradio's default (this machine only, first free port from 7860).
        options: further arguments of ``gr.Blocks.launch``, such as ``prevent_thread_lock`` or ``share``.
    """
    lane = Lane()
    lane.call(lambda: backend.load(backend.pools()[0].name))
    blocks = build(backend, lane)
    blocks.launch(
        server_name=host,
        server_port=port,
        theme=theme(),
        head=f"<style>{(STATIC / 'style.css').read_text('utf-8')}</style>",  # css_paths would rewrite the selectors
        js=(STATIC / "page.js").read_text("utf-8"),
        run_history=False,  # it would keep every answer a second time, in the visitor's browser
        ssr_mode=False,
        footer_links=["settings"],
        state_session_capacity=500,
        **options,
    )
    return blocks


def theme() -> gr.themes.Base:
    """Grey, so that the only colours are the drafters'; fonts of the visitor's own system; readable secondary text."""
    grey = gr.themes.colors.zinc
    base = gr.themes.Default(
        primary_hue=grey,
        secondary_hue=grey,
        neutral_hue=grey,
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )
    return base.set(
        body_text_color_subdued="*neutral_500",
        body_text_color_subdued_dark="*neutral_400",
        block_info_text_color="*neutral_500",
        block_info_text_color_dark="*neutral_400",
        block_label_text_color="*neutral_700",
        button_primary_background_fill="*neutral_800",
        button_primary_background_fill_hover="*neutral_700",
        button_primary_background_fill_dark="*neutral_200",
        button_primary_background_fill_hover_dark="*neutral_50",
        button_primary_text_color="white",
        button_primary_text_color_dark="*neutral_900",
        color_accent="#0072B2",
        slider_color="*neutral_600",
        slider_color_dark="*neutral_300",
        checkbox_background_color_selected="*neutral_700",
        checkbox_background_color_selected_dark="*neutral_400",
        input_border_color_focus="*neutral_500",
        input_border_color_focus_dark="*neutral_400",
        link_text_color="#0072B2",
        link_text_color_dark="#56B4E9",
        link_text_color_hover="#005A8E",
        link_text_color_hover_dark="#8CCBF0",
    )
