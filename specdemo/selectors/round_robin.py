"""Every drafter in turn."""

from specdemo.selectors.base import BaseSelector


class RoundRobin(BaseSelector):
    """Every drafter in turn: an even share for all, without chance."""

    def choose(self) -> int:
        """The next arm."""
        self.chosen = (self.chosen + 1) % len(self.arms)
        return self.chosen
