"""Plain decoding."""

from specdemo.selectors.base import BaseSelector


class NoDrafter(BaseSelector):
    """Plain decoding: no drafter at all, the baseline of every speed-up."""

    def choose(self) -> int:
        """Always -1."""
        return -1
