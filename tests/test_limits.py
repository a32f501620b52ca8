"""Which token ends an answer, and the order of the reasons."""

from __future__ import annotations

import pytest

from specdemo.limits import cut


@pytest.mark.parametrize(
    ("block", "budget", "room", "eos", "stop", "kept", "finish"),
    [
        ((7, 8, 9), 9, 9, {3}, None, 3, None),
        ((7, 3, 9), 9, 9, {3}, None, 2, "eos"),
        ((7, 8, 9), 9, 9, {3}, 8, 2, "stop"),
        ((7, 8, 9), 2, 9, {3}, None, 2, "length"),
        ((7, 8, 9), 9, 2, {3}, None, 2, "context"),
        ((7, 8, 9), 2, 2, {3}, None, 2, "length"),
        ((7, 3, 9), 2, 9, {3}, 3, 2, "stop"),  # one token, all reasons
        ((7, 3, 9), 2, 2, {3}, None, 2, "eos"),
        ((3, 8, 9), 9, 9, {3}, 9, 1, "eos"),  # the earliest wins
        ((7, 8, 9), 1, 9, {8}, 9, 1, "length"),
        ((3,), 9, 9, set(), None, 1, None),  # end token ignored
    ],
)
def test_cut(block, budget, room, eos, stop, kept, finish) -> None:
    got = cut(block, budget=budget, room=room, eos=eos, completes_stop=lambda token: token == stop)
    assert got == (block[:kept], finish)


def test_the_text_sees_every_kept_token_and_no_other() -> None:
    seen: list[int] = []
    cut((7, 3, 9), budget=9, room=9, eos={3}, completes_stop=lambda token: bool(seen.append(token)))
    assert seen == [7, 3]
