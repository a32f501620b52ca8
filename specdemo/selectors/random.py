"""A new drafter by lot in every round."""

from specdemo.selectors.base import BaseSelector


class Random(BaseSelector):
    """A drafter drawn uniformly in every round: what learning has to beat."""

    def choose(self) -> int:
        """Any arm."""
        self.chosen = int(self.rng.integers(len(self.arms)))
        return self.chosen
