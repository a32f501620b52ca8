"""The numbers of a run, as pure functions of its rounds. Every docstring carries its formula.

``accepted + rounds == tokens`` holds for every run: each round ends with exactly one token of the target's own.
A ratio with nothing to divide by is None, not 0: no rounds, nothing drafted, no time passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from specdemo.types import Round

TARGET = "target"
_PHASES = ("draft_ms", "verify_ms", "feedback_ms", "learn_ms", "other_ms")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What is printed, shown and stored about a run. Field names follow vLLM and AIPerf where they have one.

    Attributes:
        text: the answer. ``token_ids``: its tokens.
        drafter_of_token: who proposed each token, None for the target's own.
        num_spec_steps: rounds.
        num_draft_tokens, num_accepted_draft_tokens: drafted, and kept (cut tokens count nowhere).
        mean_acceptance_length, draft_acceptance_rate, acceptance_histogram, acceptance_by_position,
        tokens_per_second, finish_reason, drafter_share, switches, timings: see the functions of these names.
    """

    text: str
    token_ids: list[int]
    drafter_of_token: list[str | None]
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_histogram: dict[str, int]
    acceptance_by_position: list[float]
    tokens_per_second: float | None
    finish_reason: str | None
    drafter_share: dict[str, float]
    switches: int
    timings: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain dict of JSON-able values."""
        return asdict(self)


def summarise(rounds: Sequence[Round]) -> RunSummary:
    """Every number of the run. Costs a few microseconds a round."""
    return RunSummary(
        text=text(rounds),
        token_ids=token_ids(rounds),
        drafter_of_token=drafter_of_token(rounds),
        num_spec_steps=len(rounds),
        num_draft_tokens=sum(r.drafted for r in rounds),
        num_accepted_draft_tokens=sum(r.accepted for r in rounds),
        mean_acceptance_length=mean_acceptance_length(rounds),
        draft_acceptance_rate=draft_acceptance_rate(rounds),
        acceptance_histogram=acceptance_histogram(rounds),
        acceptance_by_position=acceptance_by_position(rounds),
        tokens_per_second=tokens_per_second(rounds),
        finish_reason=finish_reason(rounds),
        drafter_share=drafter_share(rounds),
        switches=switches(rounds),
        timings=timings(rounds),
    )


def text(rounds: Sequence[Round]) -> str:
    """All pieces, joined: only what is final, so characters still waiting for their last token are missing."""
    return "".join(piece for r in rounds for piece in r.pieces)


def token_ids(rounds: Sequence[Round]) -> list[int]:
    """All committed tokens, in order."""
    return [token for r in rounds for token in r.tokens]


def drafter_names(rounds: Sequence[Round]) -> tuple[str, ...]:
    """Name of each arm's drafter; empty before the first round."""
    return rounds[0].start.drafters if rounds and rounds[0].start else ()


def drafter_of_token(rounds: Sequence[Round]) -> list[str | None]:
    """Per token: the drafter that proposed it; None for the last token of every block, which is the target's own."""
    names = drafter_names(rounds)
    return [name for r in rounds for name in [*([names[r.arm]] * r.accepted if r.accepted else []), None]]


def mean_acceptance_length(rounds: Sequence[Round]) -> float | None:
    """Committed tokens / rounds = 1 + accepted / rounds: the bonus or corrected token is counted."""
    return _ratio(len(token_ids(rounds)), len(rounds))


def draft_acceptance_rate(rounds: Sequence[Round]) -> float | None:
    """Accepted / drafted, bonus not counted. Falls as k grows, so never compare it across draft lengths."""
    return _ratio(sum(r.accepted for r in rounds), sum(r.drafted for r in rounds))


def acceptance_histogram(rounds: Sequence[Round]) -> dict[str, int]:
    """{accepted count: rounds with exactly that count}, ascending; the keys are strings, as in JSON."""
    return {str(n): count for n, count in sorted(Counter(r.accepted for r in rounds).items())}


def acceptance_by_position(rounds: Sequence[Round]) -> list[float]:
    """Entry j - 1: rounds with at least j accepted / rounds that drafted at least j deep (see :func:`draft_depth`)."""
    depths = [draft_depth(r) for r in rounds]
    longest = max(depths, default=0)
    return [sum(r.accepted >= j for r in rounds) / sum(depth >= j for depth in depths) for j in range(1, longest + 1)]


def draft_depth(r: Round) -> int:
    """Longest root path of the drafted tokens that count: of a chain all of them; of a tree its depth, or, where the
    block was cut, the cut's (everything counted lies before the cut, and everything before the cut was accepted)."""
    if r.parents is None:
        return r.drafted
    if r.drafted < len(r.draft):
        return r.accepted
    depth: list[int] = []
    for parent in r.parents:
        depth.append(1 + (depth[parent] if parent >= 0 else 0))
    return max(depth, default=0)


def tokens_per_second(rounds: Sequence[Round]) -> float | None:
    """Committed tokens / wall time from the start of the first round to the end of the last; no prefill, no compile."""
    return _ratio(1000 * len(token_ids(rounds)), rounds[-1].at_ms if rounds else 0)


def finish_reason(rounds: Sequence[Round]) -> str | None:
    """The last round's ``finish``: None while the answer is unfinished. A run of no rounds had no budget: "length"."""
    return rounds[-1].finish if rounds else "length"


def drafter_share(rounds: Sequence[Round]) -> dict[str, float]:
    """{drafter: its accepted tokens / tokens}, "target" for the target's own; sums to 1, all 0 without tokens."""
    counts = Counter(TARGET if name is None else name for name in drafter_of_token(rounds))
    total = counts.total() or 1
    return {name: counts[name] / total for name in dict.fromkeys((*drafter_names(rounds), TARGET))}


def switches(rounds: Sequence[Round]) -> int:
    """Rounds whose arm is not the arm of the round before."""
    return sum(a.arm != b.arm for a, b in pairwise(rounds))


def timings(rounds: Sequence[Round]) -> dict[str, float]:
    """Milliseconds: each phase summed over the rounds; ``total_ms`` is the wall time from the start of the first round
    to the end of the last, so ``prefill_ms``, ``compile_ms`` and ``shadow_ms`` (all that was done for display and
    regret only) come on top of it."""
    start = rounds[0].start if rounds else None
    return {
        "prefill_ms": start.prefill_ms if start else 0.0,
        "compile_ms": start.compile_ms if start else 0.0,
        **{phase: sum(getattr(r, phase) for r in rounds) for phase in _PHASES},
        "shadow_ms": (start.shadow_ms if start else 0.0) + sum(r.shadow_ms for r in rounds),
        "total_ms": rounds[-1].at_ms if rounds else 0.0,
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
