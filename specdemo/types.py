"""The records that travel between the parts of specdemo, and the contracts they meet.

Read this file first. The vocabulary, used everywhere:

* *target*: the large model whose text is wanted. *drafter*: proposes tokens cheaply. *arm*: (drafter, draft length).
* *round*: one draft, one target forward, one verdict. *block*: the tokens a round commits.
* *accepted* tokens were drafted and kept; the *target's own* token ends every block: the *corrected* token after a
  rejection, the *bonus* token when every draft was accepted. So ``len(block) == accepted + 1``, always: where a block
  is cut (end of sequence, stop string), the token it is cut at stands in for the bonus token, and drafts at or
  beyond the cut count nowhere.

Nothing here imports torch at run time: the user interface and the store read these records without it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from specdemo.times import Times

Finish = Literal["eos", "stop", "length", "context"]
Information = Literal["none", "bandit", "full"]


class SpecdemoError(Exception):
    """An error the user can do something about: the message says what happened, why, and what to do."""


# ---------------------------------------------------------------------------------------------------- what is asked


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn from logits. Defaults are greedy; every field at its default does nothing.

    Penalties as OpenAI defines them (``frequency``, ``presence``: generated tokens only) and as CTRL defines
    ``repetition`` (prompt and generated tokens, arXiv 1909.05858).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    def __post_init__(self) -> None:
        limits: list[tuple[str, float, bool, str]] = [
            ("temperature", self.temperature, 0 <= self.temperature < 1e6, "at least 0 (0 is greedy)"),
            ("top_k", self.top_k, self.top_k >= 0, "at least 0 (0 is off)"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, at most 1 (1 is off)"),
            ("min_p", self.min_p, 0 <= self.min_p <= 1, "between 0 and 1 (0 is off)"),
            ("repetition_penalty", self.repetition_penalty, 0 < self.repetition_penalty < 1e6, "above 0 (1 is off)"),
            ("frequency_penalty", self.frequency_penalty, abs(self.frequency_penalty) <= 100, "between -100 and 100"),
            ("presence_penalty", self.presence_penalty, abs(self.presence_penalty) <= 100, "between -100 and 100"),
        ]
        for name, value, ok, rule in limits:
            if not ok:
                raise SpecdemoError(f"{name} is {value}; it must be {rule}.")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. ``role`` is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Request:
    """Everything that determines an answer: the same request to the same pool gives the same trace.

    One exception: a selector that goes by measured times (``speed``) may choose otherwise on another day. At
    temperature 0 the text is the same all the same; with sampling it is another draw from the same law.

    Attributes:
        messages: the conversation, oldest first, rendered through the target's chat template.
        prompt: raw text to complete instead of a conversation (exactly one of the two is given).
        selector: key of ``SELECTORS``. ``options`` are that selector's keyword arguments.
        k: longest draft of a round, in tokens (0 is plain decoding).
        stop: the answer ends before the first of these strings.
        memory: token ids of earlier answers of this session, oldest first, for drafters that copy from them.
        calibrate: correct what is estimated about arms by what the arm that drafted realised, depth by depth.
        shadow: let all arms be evaluated for display and regret, even if the selector does not ask. Drafters of their
            own do it, the selector never sees it, and its time counts nowhere but in ``Round.shadow_ms``.
    """

    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    selector: str = "hedgespec"
    options: Mapping[str, Any] = field(default_factory=dict)
    k: int = 5
    max_new_tokens: int = 128
    sampling: Sampling = Sampling()
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    memory: tuple[tuple[int, ...], ...] = ()
    calibrate: bool = True
    shadow: bool = False

    def __post_init__(self) -> None:
        if (self.prompt is None) == (not self.messages):
            raise SpecdemoError("A request needs either messages (a conversation) or prompt (raw text), and not both.")
        if self.k < 0:
            raise SpecdemoError(f"k is {self.k}; a draft length is at least 0 (0 is plain decoding).")
        if self.max_new_tokens < 0:
            raise SpecdemoError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 0.")
        if not 0 <= self.seed < 2**63:
            raise SpecdemoError(f"seed is {self.seed}; it must lie between 0 and 2^63 - 1.")
        if any(not s for s in self.stop):
            raise SpecdemoError("A stop string is empty; leave it out instead.")


# ------------------------------------------------------------------------------------------- what happens in a round


@dataclass(frozen=True, slots=True)
class Proposal:
    """A drafter's block of ``n`` tokens: a chain, or a tree in topological order.

    Attributes:
        tokens: target vocabulary ids.
        parents: index of each token's parent in ``tokens``, -1 for a child of the committed text; None is a chain.
        probs: [n, draft vocabulary]: *the distribution each token was really drawn from*, given its path and its
            earlier siblings; None means every token is a point mass (drawn with probability one).
        vocab: [draft vocabulary] target id of each column of ``probs``; None is the identity.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None = None
    probs: Tensor | None = None
    vocab: Tensor | None = None

    def parent(self, i: int) -> int:
        """Index of token i's parent, -1 for the committed text."""
        return i - 1 if self.parents is None else self.parents[i]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification decided: the accepted root path and the target's own token after it.

    Attributes:
        path: indices into ``Proposal.tokens``, root first.
        token: the corrected or bonus token.
    """

    path: tuple[int, ...]
    token: int


@dataclass(frozen=True, slots=True)
class Verified:
    """Newly committed text, as drafters see it (a drafter never sees uncommitted target output).

    Attributes:
        tokens: [n] the committed tokens; the first time, the prompt.
        probs: [n, V] the target's law at each of these tokens, after sampling transforms; None when nobody asks what
            the drafter would have proposed (the prompt, and everything a bandit's idle drafter missed).
        features: [n, width] the target's hidden states each token was predicted from, that is those of the token
            before it, at the layers ``Target.layers`` one after the other; zeros for the very first token. None where
            no arm of the pool reads them.
    """

    tokens: tuple[int, ...]
    probs: Tensor | None = None
    features: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """What a drafter would have proposed at each newly committed position, teacher-forced.

    Exactly one of the three: ``probs`` [n, draft vocabulary] with ``vocab`` as in :class:`Proposal`; ``tokens`` [n],
    point masses, with -1 where the drafter had nothing to propose; or, for certain trees, ``children`` [n, width], all
    the tokens that are tried at a position, -1 where there are none. Of several drafters :class:`Together`: ``probs``
    or ``children`` with a leading axis of drafters.
    """

    probs: Tensor | None = None
    tokens: tuple[int, ...] | None = None
    vocab: Tensor | None = None
    children: Tensor | None = None


@dataclass(frozen=True, slots=True)
class RoundFeedback:
    """What a selector may learn from a round; which fields are filled depends on its ``information``.

    Attributes:
        arm: the arm that drafted.
        drafted: its draft tokens that were verified.
        accepted: how many of them were kept.
        divergence: mean of 1 - TV(p, q) over all drafted positions (MetaSD's block divergence); bandits only.
        acceptance: [positions, arms] 1 - TV(p, q) at committed positions, every arm, in the order of the text; full
            information only, and None in rounds without an evaluation: the next one brings all positions since the
            last. ``ratio``: [positions, arms] min(1, q / p) of the committed tokens.
        calibration: [arms, longest draft] factor by which acceptance at each depth of a draft differs from the
            estimates above (calibration.py), None if the request does not want it: multiply, and cut at 1.
        round_ms: [arms, longest draft + 1] expected time of a round of each arm with each draft length, from measured
            times; column 0 is plain decoding. ``feedback_ms``: expected time of one evaluation of all arms; it is not
            part of ``round_ms``.
    """

    arm: int
    drafted: int
    accepted: int
    divergence: float | None = None
    acceptance: NDArray[np.float64] | None = None
    ratio: NDArray[np.float64] | None = None
    calibration: NDArray[np.float64] | None = None
    round_ms: NDArray[np.float64] | None = None
    feedback_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A selector's state after a round: stored and drawn, one number per arm (None: not known).

    Attributes:
        kind: what ``value`` is: "weight" (a probability), "index" (an upper confidence bound), "choice" (0 or 1).
        value: what the next choice is made by.
        estimate: estimated reward or acceptance length, see the selector's docstring.
        loss: loss of the round just finished, in [0, 1].
    """

    kind: str
    value: tuple[float | None, ...]
    estimate: tuple[float | None, ...]
    loss: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What all arms would have done at positions of the text: for display and regret (evaluation/ledger.py).

    The positions are those committed since the last evaluation; arms are in the order of ``Start.evaluated``.

    Attributes:
        acceptance: [positions][arms] 1 - TV(p, q). ``ratio``: [positions][arms] min(1, q / p) of the committed tokens.
    """

    acceptance: tuple[tuple[float, ...], ...]
    ratio: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Start:
    """What was done before the first round. Times in milliseconds; none of it counts as decoding time.

    Attributes:
        prompt_tokens: length of the prompt in tokens.
        prefill_ms: target and drafters reading the prompt.
        compile_ms: compilation that this run had to wait for, not part of ``prefill_ms``.
        rows: rows of every scoring forward (the fixed shape).
        arms: names of the arms, in the order used by every per-arm tuple.
        drafters: name of each arm's drafter.
        evaluated: names of the arms that rounds evaluate for display and regret, ``lengths``: their draft lengths,
            ``families``: theirs; empty where nobody evaluates.
        shadow_ms: drafters of the shadow reading the prompt, not part of ``prefill_ms``.
    """

    prompt_tokens: int
    prefill_ms: float
    compile_ms: float
    rows: int
    arms: tuple[str, ...]
    drafters: tuple[str, ...]
    evaluated: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    families: tuple[str, ...] = ()
    shadow_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """The only thing that leaves the engine: one draft, one target forward, one verdict. JSON-able, picklable.

    Attributes:
        index: 0, 1, 2, ...
        arm: index of the arm that drafted (into ``Start.arms``), -1 for plain decoding.
        k: draft length asked for.
        draft: every drafted token, also the rejected ones; ``parents`` as in :class:`Proposal`.
        draft_p, draft_q: probability of each drafted token under target and drafter after sampling transforms.
        drafted: drafted tokens that count (cut ones do not), ``accepted``: how many of them were kept.
        path: indices into ``draft`` of the accepted tokens.
        tokens: the committed block: the accepted tokens, then the target's own.
        p: target probability of each committed token. Like ``draft_p`` it is the law after sampling transforms,
            except at temperature 0, where that law is a point mass and the softmax at temperature 1 is more telling.
        pieces: text that became final, one piece per token in the order of all committed tokens. A piece may come
            rounds after its token (characters split over tokens, possible beginnings of stop strings).
        finish: why the answer ends here, None if it goes on.
        draft_ms, verify_ms, feedback_ms, learn_ms, other_ms: where the time of the round went.
        at_ms: end of the round: sum of the round times so far (time the reader of the stream takes is not in it).
        snapshot: the selector after the round.
        start: in round 0 only.
        shadow_ms: time spent for display and regret only: part of no other number.
        realised: probability that the draft was accepted at each depth of its path, up to the first rejection or the
            cut; only where estimates of arms are to be corrected by it.
        evaluated: what all arms would have done, if they were evaluated in this round.
    """

    index: int
    arm: int
    k: int
    draft: tuple[int, ...]
    parents: tuple[int, ...] | None
    draft_p: tuple[float, ...]
    draft_q: tuple[float, ...]
    drafted: int
    accepted: int
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    p: tuple[float, ...]
    pieces: tuple[str, ...]
    finish: Finish | None
    draft_ms: float
    verify_ms: float
    feedback_ms: float
    learn_ms: float
    other_ms: float
    at_ms: float
    snapshot: Snapshot
    start: Start | None = None
    shadow_ms: float = 0.0
    realised: tuple[float, ...] = ()
    evaluated: Evaluated | None = None

    @property
    def round_ms(self) -> float:
        """Wall time of the round."""
        return self.draft_ms + self.verify_ms + self.feedback_ms + self.learn_ms + self.other_ms

    def to_dict(self) -> dict[str, Any]:
        """Plain dict of JSON-able values."""
        return asdict(self)


# ---------------------------------------------------------------------------------------------------- who takes part


class Rng(Protocol):
    """The two ways randomness enters a decode. Tests replace it to enumerate every outcome exactly."""

    def flip(self, probability: float) -> bool:
        """True with the given probability."""
        ...

    def draw(self, weights: Tensor) -> int:
        """An index of the 1-D ``weights`` [V] (non-negative, not necessarily normalised), drawn in proportion."""
        ...


class Transform(Protocol):
    """Sampling transforms: logits to the law a token is drawn from (see sampling.py)."""

    greedy: bool
    looks_back: bool  # contexts matter (penalties); otherwise they may be left empty

    def __call__(self, logits: Tensor, contexts: Sequence[Sequence[int]]) -> Tensor:
        """[n, V] logits, the token ids before each row -> [n, V] probabilities (one-hot when greedy)."""
        ...


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What a drafter is started with, once per run.

    Attributes:
        memory: token ids of earlier answers of the session.
        transform: the run's sampling transforms; q should be the drafter's law after them.
        capacity: most tokens the run's context can reach (prompt and answer).
        shared: where drafters of one run that share something (heads with one key-value cache) leave it for each other.
    """

    memory: tuple[tuple[int, ...], ...]
    transform: Transform
    capacity: int
    shared: dict[Any, Any] = field(default_factory=dict)


class Drafter(Protocol):
    """One drafter of one run. It owns its cache and its random state comes in as ``rng``."""

    def catch_up(self, verified: Verified) -> Rows | None:
        """Process committed tokens not seen yet: extends the cache *and*, if ``verified.probs`` is given, returns what
        would have been proposed at each of these positions. The first call brings the prompt. A bandit's idle drafters
        get everything they missed in one call when they are chosen (MetaSD's switching cost)."""
        ...

    def propose(self, k: int, rng: Rng) -> Proposal:
        """Draft at most ``k`` tokens after the committed text, or a tree of that depth (fewer, or none, when there is
        nothing to say)."""
        ...

    def observe(self, verified: Verified) -> None:
        """Learn from verified tokens: those of a round it drafted, or, where all arms are evaluated, those that an
        evaluation brought (each exactly once). Frozen drafters pass."""
        ...


@runtime_checkable
class Together(Drafter, Protocol):
    """A drafter that can tell at any later time what it would have proposed, and does so together with others of its
    group for little more than what one costs. Where it is asked later, it is not given laws to catch up with."""

    @property
    def group(self) -> Hashable:
        """The same for all that can be asked together."""
        ...

    def proposed(self, group: Sequence[Any], start: int) -> Rows:
        """What the drafters of the group, all of which have read the same text, would have proposed at the positions of
        this text from ``start`` on."""
        ...


DrafterStart = Callable[[DraftContext], Drafter]


class Selector(Protocol):
    """Chooses the arm of every round."""

    @property
    def information(self) -> Information:
        """What ``update`` is given: nothing, the chosen arm's outcome, or every arm's."""
        ...

    def choose(self) -> int:
        """Index of the arm that drafts next; -1 for plain decoding."""
        ...

    def draft_length(self, arm: int) -> int:
        """How many tokens the arm just chosen should draft, at most its own draft length."""
        ...

    def due(self) -> bool:
        """Whether all arms should be evaluated after this round (full information only). What is not evaluated now
        waits for the next time; nothing is dropped."""
        ...

    def update(self, feedback: RoundFeedback) -> None:
        """Learn from the round."""
        ...

    def snapshot(self) -> Snapshot:
        """State for display and storage."""
        ...


class TargetSession(Protocol):
    """The target's side of one run: owns the KV cache. ``rows`` is what every scoring forward is padded to.

    ``hidden`` [n, width] holds the hidden states of the last forward at ``Target.layers``: of all tokens of the prompt
    but the last after ``prefill``, one row per row of logits after ``score``; None if there are no layers to read.
    """

    compile_ms: float
    rows: int

    @property
    def hidden(self) -> Tensor | None:
        """Hidden states of the last forward."""
        ...

    def prefill(self, tokens: Sequence[int]) -> None:
        """Read the prompt (all of it; at least one token)."""
        ...

    def score(self, proposal: Proposal) -> Tensor:
        """One forward. Row 0 of the returned float [n + 1, V] logits follows the committed text, row i + 1 follows
        draft token i on its path. Always runs through the same padded number of rows."""
        ...

    def commit(self, path: Sequence[int], token: int) -> None:
        """Keep the accepted nodes of the last scored proposal and append the target's own token."""
        ...


class Tokenizer(Protocol):
    """The part of a tokenizer that the engine needs."""

    def encode(self, request: Request) -> list[int]:
        """Prompt ids of a request: chat template or raw text."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the tokens, special tokens left out, no clean-up of spaces."""
        ...


class Target(Protocol):
    """The model whose text is wanted.

    ``layers``: the hidden states that drafters read, counted as transformers counts them: 0 is the embedding, n the
    output of the n-th layer; that of the last layer is taken after the final norm, as the LM head sees it.
    """

    vocab_size: int
    eos: frozenset[int]
    window: int
    layers: tuple[int, ...]

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        ...

    def session(self, capacity: int, rows: int) -> TargetSession:
        """Start a run of at most ``capacity`` tokens, scored through at least ``rows`` rows (a fixed shape)."""
        ...


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm of a pool: a drafter, and how it is shown.

    Attributes:
        name: unique in the pool. ``family``: key of ``DRAFTERS``. ``domain``: what it is good at, for people.
        colour: two hex colours, for a light and for a dark page.
        start: makes the drafter of a run.
        k: longest draft of this arm, None for the request's.
        nodes: most tokens of a draft that is a tree (its depth is ``k``), 0: it drafts chains.
    """

    name: str
    family: str
    start: DrafterStart
    domain: str = ""
    colour: tuple[str, str] = ("", "")
    k: int | None = None
    nodes: int = 0


def _new_times() -> Times:
    from specdemo.times import Times  # brings numpy, which nobody needs who only reads records

    return Times()


@dataclass(frozen=True, slots=True)
class Pool:
    """A target and the arms that draft for it, loaded.

    ``times``: measured so far, where a run starts from (times.py); :meth:`Times.fixed` makes choices independent of the
    clock.
    """

    name: str
    target: Target
    arms: tuple[Arm, ...]
    info: Mapping[str, Any] = field(default_factory=dict)
    times: Times = field(default_factory=_new_times, compare=False)
