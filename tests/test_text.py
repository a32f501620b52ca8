"""Incremental text equals the whole text, whatever the bytes, pieces and stop strings."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdemo.text import TextStream


def utf8(tokens) -> str:
    return b"".join(tokens).decode("utf-8", "replace")


def stream(tokens, stop=(), blocks=1) -> tuple[list[str], TextStream, list[str]]:
    """Push tokens in blocks as the engine does; pieces, the stream, and what a reader had seen after each block."""
    text, pieces, seen = TextStream(utf8, stop), [], []
    for start in range(0, len(tokens), blocks):
        for token in tokens[start : start + blocks]:
            if text.push(token):
                pieces += text.release(finish=True)
                return pieces, text, [*seen, "".join(pieces)]
        pieces += text.release(finish=start + blocks >= len(tokens))
        seen.append("".join(pieces))
    return pieces, text, seen


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=12), st.lists(st.integers(0, 60), max_size=12), st.integers(1, 4))
def test_pieces_join_to_the_text(text: str, cuts: list[int], blocks: int) -> None:
    tokens = split(text.encode("utf-8", "replace"), cuts)
    pieces, _, seen = stream(tokens, blocks=blocks)
    assert "".join(pieces) == utf8(tokens)
    assert len(pieces) == len(tokens)
    assert not any("\N{REPLACEMENT CHARACTER}" in s for s in seen) or "\N{REPLACEMENT CHARACTER}" in text


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=12), st.lists(st.integers(0, 12), max_size=6))
def test_bytes_that_are_no_text(data: bytes, cuts: list[int]) -> None:
    tokens = split(data, cuts)
    pieces, _, _ = stream(tokens)
    assert "".join(pieces) == utf8(tokens)


@settings(max_examples=300, deadline=None)
@given(
    st.text("abc", max_size=14),
    st.lists(st.integers(0, 14), max_size=8),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 4),
)
def test_nothing_of_a_stop_string_is_ever_shown(text: str, cuts: list[int], stop: list[str], blocks: int) -> None:
    tokens = split(text.encode(), cuts)
    pieces, last, seen = stream(tokens, stop, blocks)
    # the token whose arrival completes a stop string ends the text; before it, the earliest beginning counts
    given_so_far, wanted = "", text
    for token in tokens:
        given_so_far += token.decode()
        found = [given_so_far.find(s) for s in stop if s in given_so_far]
        if found:
            wanted = given_so_far[: min(found)]
            break
    assert "".join(pieces) == last.text == wanted
    assert all(wanted.startswith(s) for s in seen)


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    pieces, _, _ = stream([b"a\xf0\x9f", b"\x8e", b"\x89b", b"c"])
    assert pieces == ["", "", "a🎉b", "c"]


def test_an_unfinished_character_at_the_end_is_shown_as_such() -> None:
    pieces, _, _ = stream([b"a", b"\xf0\x9f"])
    assert pieces == ["a", "\N{REPLACEMENT CHARACTER}"]


def test_text_that_may_become_a_stop_string_waits() -> None:
    text = TextStream(utf8, ["lo wo"])
    for token in (b"hel", b"lo"):
        text.push(token)
    assert text.release() == ("hel",)
    text.push(b" x")
    assert text.release() == ("lo", " x")


@pytest.mark.parametrize("stop", ["STOP", "a STOP b"])
def test_a_stop_string_that_begins_inside_a_token(stop: str) -> None:
    pieces, _, _ = stream([b"so a S", b"TOP b", b"never"], [stop])
    assert "".join(pieces) == "so a STOP b"[: "so a STOP b".find(stop)]
    assert len(pieces) == 2


def test_leading_spaces_of_sentencepiece_are_kept() -> None:
    """A decoder that strips the space of the first word it is given, as sentencepiece does."""
    decode = lambda tokens: "".join(tokens).replace("▁", " ").removeprefix(" ")  # noqa: E731
    text = TextStream(decode)
    for token in ("▁Hello", "▁big", "▁wor", "ld"):
        text.push(token)
    assert text.release(finish=True) == ("Hello", " big", " wor", "ld")
