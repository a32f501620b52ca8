import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo import metrics
from tests.traces import make_round, make_start, make_trace

# Round 0: "lookup" drafts 3, 2 kept, corrected token.   10 11 | 50       at 30 ms
# Round 1: plain, nothing drafted.                       | 51             at 50 ms
# Round 2: "small" drafts 2, both kept, bonus token.     20 21 | 52       at 90 ms
# Round 3: "small" drafts 4, the 2nd is the end of sequence: 1 counts, it is kept, the end stands in for the bonus.
HAND = [
    make_round(0, (10, 11, 12), 2, 50, arm=0, at_ms=30.0,
               start=make_start(prefill_ms=100.0, compile_ms=7.0, shadow_ms=3.0)),
    make_round(1, (), 0, 51, at_ms=50.0, round_ms=20.0, shadow_ms=2.5),
    make_round(2, (20, 21), 2, 52, arm=2, at_ms=90.0, round_ms=40.0),
    make_round(3, (30, 2, 31, 32), 1, 2, arm=2, drafted=1, at_ms=100.0, round_ms=10.0, finish="eos",
               pieces=(" t30", "")),
]  # fmt: skip


def test_hand_trace_has_every_hand_value() -> None:
    s = metrics.summarise(HAND)
    assert s.token_ids == [10, 11, 50, 51, 20, 21, 52, 30, 2]
    assert s.text == " t10 t11 t50 t51 t20 t21 t52 t30"
    assert s.drafter_of_token == ["lookup", "lookup", None, None, "small", "small", None, "small", None]
    assert (s.num_spec_steps, s.num_draft_tokens, s.num_accepted_draft_tokens) == (4, 6, 5)
    assert s.mean_acceptance_length == 9 / 4
    assert s.draft_acceptance_rate == 5 / 6
    assert s.acceptance_histogram == {"0": 1, "1": 1, "2": 2}
    assert s.acceptance_by_position == [3 / 3, 2 / 2, 0 / 1]
    assert s.tokens_per_second == pytest.approx(90.0)
    assert s.finish_reason == "eos"
    assert s.drafter_share == {"lookup": 2 / 9, "suffix": 0.0, "small": 3 / 9, "target": 4 / 9}
    assert s.switches == 2
    expected = {"prefill_ms": 100, "compile_ms": 7, "draft_ms": 10, "verify_ms": 70, "feedback_ms": 10}
    assert s.timings == pytest.approx({**expected, "learn_ms": 5, "other_ms": 5, "shadow_ms": 5.5, "total_ms": 100})


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_accepted_plus_rounds_is_tokens(seed: int, n: int) -> None:
    s = metrics.summarise(make_trace(seed, n))
    assert s.num_accepted_draft_tokens + s.num_spec_steps == len(s.token_ids) == len(s.drafter_of_token)
    assert sum(int(k) * v for k, v in s.acceptance_histogram.items()) == s.num_accepted_draft_tokens
    assert sum(s.acceptance_histogram.values()) == s.num_spec_steps
    assert sum(s.drafter_share.values()) == pytest.approx(1)
    assert s.mean_acceptance_length == pytest.approx(1 + s.num_accepted_draft_tokens / n)


def test_no_rounds_and_nothing_drafted_divide_by_nothing() -> None:
    s = metrics.summarise([])
    assert (s.text, s.token_ids, s.finish_reason, s.switches) == ("", [], "length", 0)
    assert s.mean_acceptance_length is s.draft_acceptance_rate is s.tokens_per_second is None
    plain = metrics.summarise([make_round(0, at_ms=0.0)])
    assert plain.draft_acceptance_rate is None
    assert plain.acceptance_by_position == []
    assert plain.finish_reason is None
    assert plain.drafter_share == {"lookup": 0, "suffix": 0, "small": 0, "target": 1}


def test_two_arms_of_one_drafter_share_one_name() -> None:
    start = make_start(arms=("small@2", "small@5"), drafters=("small", "small"))
    rounds = [make_round(0, (1, 2), 1, 9, arm=0, start=start), make_round(1, (3,), 1, 9, arm=1)]
    s = metrics.summarise(rounds)
    assert s.drafter_share == {"small": 2 / 4, "target": 2 / 4}
    assert s.switches == 1


def test_position_in_a_tree_is_depth_and_a_cut_tree_ends_at_the_cut() -> None:
    # 5 and 6 are siblings under the root, 7 is 6's child: depth 2, path 6 -> 7.
    tree = make_round(0, (5, 6, 7), 2, 9, parents=(-1, -1, 1), path=(1, 2), tokens=(6, 7, 9))
    assert metrics.acceptance_by_position([tree]) == [1, 1]
    cut = replace(tree, index=1, path=(1,), accepted=1, tokens=(6, 7), drafted=2, start=None, finish="eos")
    assert metrics.draft_depth(cut) == 1
    assert metrics.acceptance_by_position([tree, cut]) == [2 / 2, 1 / 1]


def test_summary_is_json() -> None:
    s = metrics.summarise(HAND)
    assert metrics.RunSummary(**json.loads(json.dumps(s.to_dict(), allow_nan=False))) == s
