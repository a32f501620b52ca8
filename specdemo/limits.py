"""Where an answer ends: cut a block before it is committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from specdemo.types import Finish


def cut(
    block: Sequence[int],
    *,
    budget: int,
    room: int,
    eos: Set[int],
    completes_stop: Callable[[int], bool],
) -> tuple[tuple[int, ...], Finish | None]:
    """Keep the block up to the first token that ends the answer, and say why it ends.

    The earliest token wins; if one token fits several reasons, stop string comes before end of sequence before budget
    before context window. The ending token is kept (as ``transformers.generate`` does); a stop string's *text* is cut
    by the text stream.

    Args:
        block: accepted tokens and the target's own token.
        budget: tokens that may still be generated. ``room``: tokens that still fit the context window.
        eos: ids that end a sequence.
        completes_stop: told every kept token in order; True when the text now contains a stop string.
    """
    for n, token in enumerate(block, 1):
        if completes_stop(token):
            return tuple(block[:n]), "stop"
        if token in eos:
            return tuple(block[:n]), "eos"
        if n >= min(budget, room):
            return tuple(block[:n]), "length" if budget <= room else "context"
    return tuple(block), None
