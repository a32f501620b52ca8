"""Late evaluation of all arms: delayed, never dropped, never twice; and the arm that drafts is level before it does."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from specdemo.drafters import DRAFTERS
from specdemo.engine import generate
from specdemo.evaluation.ledger import estimated, matrices
from specdemo.feedback import draft_acceptance, likelihood_ratio, overlap
from specdemo.selectors import SELECTORS
from specdemo.selectors.base import BaseSelector
from specdemo.types import Arm, Pool, Proposal, Request, Round, RoundFeedback, Rows, Sampling, Verified
from tests import heads, tiny
from tests.fakes import FakeTarget, TableDrafter, arm, pool, table, tokens_of

V = 5
FAKE = Request(prompt="012", selector="scripted", k=3, max_new_tokens=40, ignore_eos=True)


class Scripted(BaseSelector):
    """Arms in turn, draft lengths in turn, an evaluation every m rounds; keeps what it is told."""

    information = "full"
    heard: list[RoundFeedback]

    def __init__(self, arms, lengths, rng, m: int = 1) -> None:
        super().__init__(arms, lengths, rng)
        self.m, self.rounds = m, 0
        Scripted.heard = []

    def choose(self) -> int:
        return self.rounds % (len(self.arms) + 1) - 1  # plain decoding, too

    def draft_length(self, arm: int) -> int:
        return 1 + self.rounds % 3

    def due(self) -> bool:
        self.rounds += 1
        return self.rounds % self.m == 0

    def update(self, feedback: RoundFeedback) -> None:
        Scripted.heard.append(feedback)


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SELECTORS, "scripted", Scripted)


def heard(request: Request, made: Pool, m: int) -> tuple[list[int], np.ndarray, np.ndarray, list[RoundFeedback]]:
    """Text of a run that evaluates every m rounds, and all a and r it was told, in order."""
    text = tokens_of(list(generate(Request(**{**fields(request), "options": {"m": m}}), made)))
    told = [f for f in Scripted.heard if f.acceptance is not None]
    return text, *(np.concatenate([getattr(f, name) for f in told]) for name in ("acceptance", "ratio")), Scripted.heard


def fields(request: Request) -> dict:
    return {name: getattr(request, name) for name in Request.__dataclass_fields__}


def fake_pool() -> Pool:
    laws = [table(V, seed) for seed in (1, 2, 3)]
    starts = [lambda c, law=law: TableDrafter(law, "sample", c) for law in laws]
    return pool(FakeTarget(table(V, 0), V), *(arm(f"d{i}", start) for i, start in enumerate(starts)))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_late_feedback_is_the_same_feedback(temperature: float) -> None:
    asked = Request(**{**fields(FAKE), "sampling": Sampling(temperature=temperature)})
    text, a, r, every = heard(asked, fake_pool(), 1)
    assert a.shape == r.shape == (40, 3)
    assert all(f.acceptance is not None for f in every)
    for m in (3, 7, 1000):
        late, a_late, r_late, told = heard(asked, fake_pool(), m)
        assert late == text
        assert np.array_equal(a, a_late)
        assert np.array_equal(r, r_late)
        assert len(told) == len(every)  # the selector hears of every round ...
        waits = [f.acceptance is None for f in told[:-1]]
        assert waits == [(i + 1) % m != 0 for i in range(len(told) - 1)]  # ... of positions when they are due ...
        assert told[-1].acceptance is not None  # ... and of the last ones at the end


def test_feedback_is_what_the_laws_say() -> None:
    """Row t of the matrix is of token t of the answer: a = sum min(p, q), r = min(1, q / p) there."""
    text, a, r, _ = heard(Request(**{**fields(FAKE), "sampling": Sampling(temperature=1.0)}), fake_pool(), 3)
    law = lambda seed, context: torch.softmax(torch.tensor(table(V, seed)(context), dtype=torch.float64), -1)  # noqa: E731
    for t, token in enumerate(text):
        context = [0, 1, 2, *text[:t]]
        p = law(0, context)
        for i in range(3):
            q = law(i + 1, context)
            assert a[t, i] == pytest.approx(float(torch.minimum(p, q).sum()))
            assert r[t, i] == pytest.approx(min(1.0, float(q[token] / p[token])))


def test_a_selector_decides_how_long_drafts_are() -> None:
    rounds = list(generate(FAKE, fake_pool()))
    wanted = [1 + i % 3 if r.arm >= 0 else 0 for i, r in enumerate(rounds)]
    assert [r.k for r in rounds[:-2]] == wanted[:-2]
    assert [len(r.draft) for r in rounds[:-2]] == wanted[:-2]
    capped = list(generate(Request(**{**fields(FAKE), "k": 2}), fake_pool()))
    assert max(r.k for r in capped) == 2


class Learner(TableDrafter):
    """Notes what it may learn from."""

    def __init__(self, law, context) -> None:
        super().__init__(law, "sample", context)
        self.lessons: list[Verified] = []

    def observe(self, verified: Verified) -> None:
        self.lessons.append(verified)


def test_what_is_evaluated_at_the_end_is_not_part_of_the_answers_time() -> None:
    class Slow(TableDrafter):
        def catch_up(self, verified):
            if verified.probs is not None:
                time.sleep(0.02)
            return super().catch_up(verified)

    slow = pool(FakeTarget(table(V, 0), V), arm("x", lambda c: Slow(table(V, 1), "sample", c)))
    rounds = list(generate(Request(**{**fields(FAKE), "options": {"m": 1}}), slow))
    assert rounds[-1].evaluated is not None
    assert rounds[-1].shadow_ms > 15
    assert rounds[-1].feedback_ms == 0
    assert all(r.feedback_ms > 15 for r in rounds[:-1])
    assert np.median([r.shadow_ms for r in rounds[:-1]]) < 15
    assert rounds[-1].at_ms == pytest.approx(sum(r.round_ms for r in rounds))


@pytest.mark.parametrize("m", [1, 4])
def test_learners_get_every_token_once(m: int) -> None:
    made: list[Learner] = []
    starts = [lambda c: made.append(Learner(table(V, 1), c)) or made[-1] for _ in range(2)]
    learners = pool(FakeTarget(table(V, 0), V), arm("x", starts[0]), arm("y", starts[1]))
    text, *_ = heard(FAKE, learners, m)
    for learner in made:
        assert [t for lesson in learner.lessons for t in lesson.tokens] == text
        assert all(lesson.probs is not None and len(lesson.probs) == len(lesson.tokens) for lesson in learner.lessons)


@pytest.fixture(scope="module")
def headed(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    """Two members of a bank (one grows with the text), trees of one, Hydra heads, a language model, one that copies."""
    folder, target = tmp_path_factory.mktemp("heads"), tiny.target()
    bank = str(heads.bank(folder / "bank"))
    options = {
        "all": ("eagle", {"model": bank, "member": "all"}),
        "some": ("eagle", {"model": bank, "member": "some"}),
        "hydra": ("hydra", {"model": str(heads.hydra(folder / "hydra"))}),
        "self": ("causal_lm", {}),
        "copy": ("prompt-lookup", {}),
        "tree": ("eagle", {"model": bank, "member": "some", "nodes": 9}),
    }
    arms = [
        Arm(name, family, DRAFTERS[family].load(target, **more), nodes=more.get("nodes", 0))
        for name, (family, more) in options.items()
    ]
    return Pool("headed", target, tuple(arms))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_heads_hear_late_what_they_would_have_heard_at_once(headed: Pool, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, repetition_penalty=1.1)
    asked = Request(
        prompt="w5 w9 w61 w5", selector="scripted", k=3, max_new_tokens=24, ignore_eos=True, sampling=sampling
    )
    text, a, r, _ = heard(asked, headed, 1)
    assert a.shape == r.shape == (24, 6)
    if temperature:  # at 0 random heads never match
        assert (a[:, :3].mean(0) > 0).all()
    assert a[:, 3] == pytest.approx(np.ones(24))  # the target agrees with itself
    for m in (3, 7):
        late, a_late, r_late, _ = heard(asked, headed, m)
        assert late == text
        np.testing.assert_allclose(a_late, a, atol=1e-9)
        np.testing.assert_allclose(r_late, r, atol=1e-9)


def test_a_tree_is_judged_by_its_children() -> None:
    """a is the target's mass on the children, r tells whether the token is among them."""
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.9, 0.0]], dtype=torch.float64)
    rows = Rows(children=torch.tensor([[2, 0], [1, 2]]))
    assert overlap(Verified((1, 1), p), rows) == pytest.approx([0.7, 0.9])
    assert likelihood_ratio(Verified((1, 1), p), rows).tolist() == [0, 1]


def test_teacher_forced_children_are_those_of_real_trees(headed: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees of depth 1 keep all children that are considered: estimated and realised acceptance are the same number,
    so the factor is 1; deeper ones lose some."""
    tree = [arm.name for arm in headed.arms].index("tree")
    seen = {}
    for depth in (1, 3):
        alone = {"choose": lambda self: tree, "draft_length": lambda self, arm, depth=depth: depth}
        monkeypatch.setitem(SELECTORS, "scripted", type("Alone", (Scripted,), alone))
        rounds = rounds_of("scripted", headed, False, 1.0)
        assert {r.arm for r in rounds} == {tree}
        seen[depth] = Scripted.heard[-1].calibration[tree]
    assert seen[1] == pytest.approx([1, 1, 1], abs=1e-12)
    assert seen[3][0] <= 1
    assert seen[3] != pytest.approx([1, 1, 1])


def test_realised_acceptance_by_hand() -> None:
    """Chain of two, the first accepted; certain siblings; drawn siblings, the second against what the first left."""
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.9, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    q = torch.tensor([[0.25, 0.25, 0.5], [0.6, 0.4, 0.0]], dtype=torch.float64)
    chain = Proposal((0, 1), probs=q)
    assert draft_acceptance(chain, p, (0,)) == pytest.approx([0.25 + 0.25 + 0.2, 0.1 + 0.4])
    assert draft_acceptance(chain, p, ()) == pytest.approx([0.7])
    assert draft_acceptance(chain, p, (0, 1)) == pytest.approx([0.7, 0.5])  # below a leaf nothing was drafted
    assert draft_acceptance(Proposal((0, 2), (-1, -1)), p, ()) == pytest.approx([0.7])
    # p - q = (.25, .05, 0) / .3; the sibling's law (.5, .5, 0) overlaps by .5 + 1/6
    siblings = Proposal((2, 0), (-1, -1), torch.tensor([[0.25, 0.25, 0.5], [0.5, 0.5, 0.0]], dtype=torch.float64))
    assert draft_acceptance(siblings, p, ()) == pytest.approx([1 - 0.3 * (1 - 0.5 - 1 / 6)])
    assert len(draft_acceptance(Proposal(()), p, ())) == 0


def rounds_of(selector: str, made: Pool, shadow: bool, temperature: float, **options) -> list[Round]:
    return list(
        generate(
            Request(
                prompt="012" if made.name == "fake" else "w5 w9 w61 w5",
                selector=selector,
                options=options,
                k=3,
                max_new_tokens=30,
                ignore_eos=True,
                sampling=Sampling(temperature=temperature),
                shadow=shadow,
            ),
            made,
        )
    )


def choices(rounds: list[Round]) -> list[tuple]:
    return [(r.arm, r.k, r.draft, r.draft_q, r.tokens, r.p, r.snapshot) for r in rounds]


@pytest.mark.parametrize("selector", ["metasd-ucb", "fixed", "random", "none"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_selector_never_sees_the_shadow(selector: str, temperature: float) -> None:
    alone, watched = (rounds_of(selector, fake_pool(), shadow, temperature) for shadow in (False, True))
    assert choices(alone) == choices(watched)
    assert all(r.evaluated is None and r.shadow_ms == 0 for r in alone)
    assert [len(r.evaluated.ratio) for r in watched if r.evaluated] == [len(r.tokens) for r in watched]
    assert watched[0].start is not None
    assert watched[0].start.evaluated == ("d0", "d1", "d2")
    assert watched[0].start.arms == (() if selector == "none" else ("d0", "d1", "d2"))
    assert all(r.shadow_ms > 0 for r in watched)


def test_the_shadow_leaves_heads_alone(headed: Pool) -> None:
    """Their shared cache belongs to a run's team: the shadow has drafters and caches of its own."""
    alone, watched = (rounds_of("metasd-ucb", headed, shadow, 1.0) for shadow in (False, True))
    assert choices(alone) == choices(watched)


def test_the_time_of_the_shadow_counts_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from specdemo.team import Team

    judge = Team.judge
    monkeypatch.setattr(Team, "judge", lambda team: (time.sleep(0.03), judge(team))[1])
    rounds = rounds_of("fixed", fake_pool(), True, 0.0)
    assert all(r.shadow_ms >= 30 for r in rounds)
    assert rounds[-1].at_ms == pytest.approx(sum(r.round_ms for r in rounds), rel=0.02)
    assert np.median([r.round_ms for r in rounds]) < 30


def test_what_full_information_reports_is_what_the_shadow_would() -> None:
    """Without a learner the same arm writes the same text, whoever looks on."""
    watched = rounds_of("fixed", fake_pool(), True, 1.0, arm="d1")
    text = tokens_of(watched)
    SELECTORS["scripted"] = type("Second", (Scripted,), {"choose": lambda self: 1, "draft_length": lambda self, arm: 3})
    told = rounds_of("scripted", fake_pool(), False, 1.0, m=4)
    assert tokens_of(told) == text
    for mine, shadows in zip(matrices(told), matrices(watched), strict=True):
        assert np.array_equal(mine, shadows)
    assert [r.realised for r in told] == [r.realised for r in watched]
    assert estimated(told) == estimated(watched)
    assert all((r.shadow_ms == 0) == (r.evaluated is None) for r in told)
