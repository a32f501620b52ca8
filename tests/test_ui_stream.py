"""The page without a browser: values that only grow, numbers that agree with metrics, forms, the lane."""

from __future__ import annotations

import ast
import json
import random
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from specdemo.metrics import drafter_of_token, summarise
from specdemo.types import Message, Request, Round, SpecdemoError
from specdemo.ui import chat as chat_module
from specdemo.ui.backend import Baseline, Check, Option, Outcome, Source, Stored, Team
from specdemo.ui.chat import SETTINGS, Chat, ask, chat_of, form_of
from specdemo.ui.lane import Lane
from specdemo.ui.page import Scene, end, page, stored_page
from specdemo.ui.palette import PALETTE, colour
from specdemo.ui.stream import COLUMNS, DIGITS, ESC, SEP, Answer, clean, columns, facts, legend, slower
from specdemo.ui.team import team_html
from specdemo.ui.verdict import in_words
from tests.traces import ARMS, make_round, make_start, make_trace

UI = Path(chat_module.__file__).parent
FORM = SETTINGS | {"pool": "embedded"}


def answer_of(rounds: list[Round]) -> Answer:
    answer = Answer(sources=tuple(Source(name) for name in ARMS))
    answer.add(rounds)
    return answer


def unescape(t: str) -> list[str]:
    """What view.js does."""
    pieces = t.split(SEP)[:-1]
    return [p.replace(ESC + "1", SEP).replace(ESC + "0", ESC) for p in pieces]


# ---------------------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize("seed", range(5))
def test_columns_of_batches_join_to_the_columns_of_the_whole(seed: int) -> None:
    rounds, rng = make_trace(seed, 30), random.Random(seed)
    marks, joined, at = "123", dict.fromkeys(COLUMNS, ""), 0
    while at < len(rounds):
        n = rng.randint(0, 4)
        for key, text in columns(rounds[at : at + n], marks).items():
            joined[key] += text
        at += n
    assert joined == columns(rounds, marks)


@pytest.mark.parametrize("seed", range(5))
def test_one_mark_p_and_q_per_token_in_the_order_of_metrics(seed: int) -> None:
    rounds = make_trace(seed)
    answer = answer_of(rounds)
    names = {"0": None} | {DIGITS[i + 1]: name for i, name in enumerate(ARMS)}
    assert [names[c] for c in answer.columns["s"]] == drafter_of_token(rounds)
    p, q = (answer.columns[key].split(",")[:-1] for key in "pq")
    assert p == [f"{x:.3g}" for r in rounds for x in r.p]
    assert q == [f"{x:.3g}" if x is not None else "" for r in rounds for x in (*r.draft_q[: r.accepted], None)]
    assert answer.columns["b"] == "".join(f"{r.accepted}/{r.drafted}," for r in rounds)


def test_q_of_a_tree_is_that_of_the_accepted_path() -> None:
    r = make_round(0, (5, 6, 7, 8), 2, parents=(-1, -1, 1, 2), path=(1, 2), draft_q=(0.1, 0.2, 0.3, 0.4))
    assert columns([r], "123")["q"] == "0.2,0.3,,"


@pytest.mark.parametrize(
    "text", ["a" + SEP + "b", ESC, ESC + "1", ESC + "0" + SEP, "${x}", "{{x}}", "\r\n", "\x00", ""]
)
def test_every_piece_survives_the_separators(text: str) -> None:
    r = make_round(0, (), 0, pieces=(text, "next"))
    assert unescape(columns([r], "1")["t"]) == [text, "next"]


def test_surrogates_are_made_sendable() -> None:
    assert clean("a\ud800b") == "a\ufffdb"
    assert clean("\ud83d\ude00") == "😀"
    answer = answer_of([make_round(0, (), 0, pieces=("\udfff",))])
    json.dumps(page(Chat(), Scene("done", "\ud800"))).encode()
    assert json.dumps(answer.columns, ensure_ascii=False).encode()


def test_values_of_a_growing_answer_only_grow() -> None:
    chat = Chat()
    chat.begin(ask(chat, "hi", FORM, "s"), "hi")
    chat.turns[-1].answer.sources = tuple(Source(name) for name in ARMS)
    last = dict.fromkeys(COLUMNS, "")
    for r in make_trace(1, 20):
        chat.turns[-1].answer.add([r])
        turn = page(chat, Scene("running"))["turns"][0]
        assert all(turn[key].startswith(last[key]) for key in COLUMNS)
        last = {key: turn[key] for key in COLUMNS}


# ---------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("seed", range(3))
def test_numbers_agree_with_metrics(seed: int) -> None:
    rounds = make_trace(seed)
    answer, summary = answer_of(rounds), summarise(rounds)
    shown = {label: value for label, value, _ in facts(answer, None)}
    assert shown["tokens/s"] == f"{summary.tokens_per_second:.1f}"
    assert shown["acceptance length"] == f"{summary.mean_acceptance_length:.2f}"
    assert shown["drafts kept"] == f"{100 * (summary.draft_acceptance_rate or 0):.0f} %"
    assert shown["rounds"] == str(summary.num_spec_steps)
    assert answer.text == summary.text
    counts = {entry["name"]: entry["n"] for entry in legend(answer)}
    total = sum(counts.values())
    assert {name: n / total for name, n in counts.items()} == pytest.approx(summary.drafter_share)


def test_nothing_written_has_no_speed_and_no_ratio() -> None:
    values = {label: value for label, value, _ in facts(Answer(), Baseline(50, "x"))}
    assert values == {
        "tokens/s": "–",
        "acceptance length": "–",
        "drafts kept": "–",
        "rounds": "0",
        "tokens": "0",
        "against plain": "–",
    }


def test_the_factor_is_against_the_measured_baseline_and_slower_is_said() -> None:
    answer = answer_of([make_round(i, (1, 2), 1, round_ms=100) for i in range(10)])  # 20 tokens a second
    assert facts(answer, None)[-1][1] == "not measured"
    assert facts(answer, Baseline(10, "an earlier run"))[-1][1:] == [
        "2.00×",
        "plain decoding: 10.0 tokens/s, an earlier run",
    ]
    assert slower(answer, Baseline(10, "x")) is None
    assert "Slower than plain decoding: 20.0 against 40.0 tokens/s (x)" in str(slower(answer, Baseline(40, "x")))
    assert slower(answer, None) is None


def test_plain_decoding_has_no_factor() -> None:
    answer = Answer()
    answer.add([make_round(0, start=make_start(()))])
    assert facts(answer, Baseline(10, "x"))[-1][1:] == ["–", "this run is plain decoding"]
    assert [entry["name"] for entry in legend(answer)] == ["target"]


def test_colours_own_or_of_the_palette() -> None:
    assert colour(Source("a", "", ("#123456", "#abcdef")), 3) == ("#123456", "#abcdef")
    assert colour(Source("a", "", ("red; x", "#abcdef")), 3) == PALETTE[3]
    assert len(set(PALETTE)) == 8


def test_a_drafter_keeps_its_mark_through_a_conversation() -> None:
    names: list[str] = []
    first, second = Answer(names), Answer(names)
    first.add(make_trace(0, 3))
    second.add([make_round(0, (1,), 1, arm=0, arms=("new", "suffix"))])
    assert names == [*ARMS, "new"]
    assert second.columns["s"] == "40"


# ------------------------------------------------------------------------------------------------------------- form


def test_form_to_request_and_back() -> None:
    form = FORM | {
        "system": "Be brief.",
        "selector": "fixed",
        "options": '{"arm": "suffix"}',
        "k": 3,
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "max_new_tokens": 64,
        "seed": 7,
        "stop": "\\n\\n\nEND",
        "check": True,
    }
    asked = ask(Chat(), "Hello", form, "s")
    assert asked.request.stop == ("\n\n", "END")
    assert asked.request.messages == (Message("system", "Be brief."), Message("user", "Hello"))
    assert form_of(asked) == form
    raw = ask(Chat(), "Once", form | {"raw": True}, "s")
    assert (raw.request.prompt, raw.request.messages) == ("Once", ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": None}, "Seed is empty"),
        ({"seed": 1.5}, "whole number"),
        ({"seed": float("nan")}, "must be a number"),
        ({"seed": -1}, "between 0"),
        ({"k": 9}, "at most 8"),
        ({"k": -1}, "at least 0"),
        ({"max_new_tokens": 10**9}, "at most"),
        ({"temperature": "hot"}, "must be a number"),
        ({"top_p": 0}, "top_p is 0"),
        ({"options": "{"}, "not JSON"),
        ({"options": "[1]"}, "JSON object"),
    ],
)
def test_what_cannot_be_used_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecdemoError, match=message):
        ask(Chat(), "Hello", FORM | changes, "s")


@pytest.mark.parametrize("prompt", ["", "  \n", None])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(SpecdemoError, match="prompt is empty"):
        ask(Chat(), prompt, FORM, "s")


def test_a_stored_run_goes_on_where_it_was() -> None:
    request = Request(
        messages=(Message("system", "S"), Message("user", "a"), Message("assistant", "b"), Message("user", "c")),
        memory=((1, 2),),
    )
    asked = ask(Chat(), "x", FORM, "s")
    chat = chat_of(type(asked)(request, "embedded"))
    chat.turns[-1].answer.add([make_round(0, (5,), 1, own=6)])
    following = ask(chat, "d", FORM, "s").request
    assert [m.content for m in following.messages] == ["a", "b", "c", " t5 t6", "d"]
    assert following.memory == ((1, 2), (5, 6))


def test_turns_without_an_answer_leave_the_conversation() -> None:
    chat = Chat()
    chat.begin(ask(chat, "one", FORM, "s"), "one")
    assert [m.content for m in ask(chat, "two", FORM, "s").request.messages] == ["two"]
    chat.begin(ask(chat, "two", FORM, "s"), "two")
    assert [turn.prompt for turn in chat.turns] == ["two"]


# ------------------------------------------------------------------------------------------------------------- page


def test_a_stored_page_ends_like_the_live_one() -> None:
    rounds, outcome = make_trace(3), Outcome("finished", Baseline(1e6, "x"), Check(False, "Differs ..."))
    chat = Chat()
    asked = ask(chat, "hi", FORM, "s")
    chat.begin(asked, "hi")
    live, scene = chat.turns[-1], Scene("running")
    live.answer.sources = sources = tuple(Source(name) for name in ARMS)
    live.answer.add(rounds)
    end(scene, live, outcome)
    stored = page(*stored_page(Stored("id", asked, sources, rounds, outcome)))
    fresh = page(chat, scene)
    for key in ("facts", "legend", "notices"):
        assert stored[key] == fresh[key]
    assert [kind for kind, _ in fresh["notices"]] == ["warn", "warn"]
    assert stored["status"] == "Stored run. " + fresh["status"]


def test_check_results_in_words() -> None:
    same = in_words({"identical": True, "tokens": 12})
    assert same is not None
    assert same.identical
    d = {"index": 4, "text": " a", "margin": 0.01, "plain_text": None, "plain_margin": None}
    differs = in_words({"identical": False, "tokens": 4, "first_difference": d})
    assert differs is not None
    assert "from token 5 on: ' a' here" in differs.text
    assert "0.01" in differs.text
    unknown = in_words({"identical": None, "why": "Because."})
    assert unknown == Check(None, "Not compared with plain decoding. Because.")
    assert in_words(None) is None


# ------------------------------------------------------------------------------------------------------------- lane


def test_results_come_in_order_in_batches_no_faster_than_asked() -> None:
    def work(_: threading.Event) -> Iterator[int]:
        for i in range(50):
            time.sleep(0.002)
            yield i

    times, seen = [], []
    for batch in Lane().submit(work).batches(0.03):
        if batch:
            times.append(time.monotonic())
            seen += batch
    assert seen == list(range(50))
    assert all(b - a > 0.025 for a, b in pairwise(times[:-1]))


def test_one_job_at_a_time_in_order_and_a_stopped_one_never_starts() -> None:
    lane, started, go = Lane(), [], threading.Event()

    def work(name: str) -> Any:
        def run(_: threading.Event) -> Iterator[str]:
            started.append(name)
            go.wait(5)
            yield name

        return run

    a, b, c = (lane.submit(work(name)) for name in "abc")
    time.sleep(0.05)
    assert (a.ahead, b.ahead, c.ahead) == (0, 1, 2)
    b.stop.set()
    go.set()
    assert [list(filter(None, job.batches())) for job in (a, b, c)] == [[["a"]], [], [["c"]]]
    assert started == ["a", "c"]


def test_errors_arrive_after_the_results_before_them_and_the_lane_goes_on() -> None:
    lane, seen = Lane(), []

    def work(_: threading.Event) -> Iterator[int]:
        yield 1
        raise SpecdemoError("broken")

    batches = lane.submit(work).batches()
    with pytest.raises(SpecdemoError, match="broken"):
        seen.extend(iter(batches))
    assert [x for batch in seen for x in batch] == [1]
    assert [x for batch in lane.submit(lambda _: [2]).batches() for x in batch] == [2]


def test_leaving_the_results_stops_the_work() -> None:
    def work(stop: threading.Event) -> Iterator[int]:
        while not stop.wait(0.01):
            yield 1

    job = Lane().submit(work)
    batches = job.batches()
    next(batches)
    batches.close()
    assert job.stop.is_set()


def test_waiting_yields_empty_batches() -> None:
    def work(_: threading.Event) -> Iterator[int]:
        time.sleep(0.6)
        yield 1

    assert list(Lane().submit(work).batches())[:2] == [[], []]


# ---------------------------------------------------------------------------------------------------------- imports


def test_the_page_imports_no_model_code() -> None:
    for path in UI.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [n for n in names if n.split(".")[0] in {"torch", "transformers"}], path


def test_static_files_hold_no_template_code() -> None:
    """Gradio evaluates templates: neither mustache nor template literals may be in the static one."""
    text = (UI / "static" / "view.html").read_text("utf-8")
    assert "{{" not in text
    assert "${" not in text
    assert Option("x").about == ""


def test_the_table_of_drafters_escapes_and_marks_the_best() -> None:
    sources = (Source("<b>a</b>", "<script>", ("#0072B2", "#56B4E9")), Source("b", "maths"))
    html = team_html(Team(sources, {"<b>a</b>": {"code": 2.5}, "b": {"code": 2.0, "maths": 1.5}}, "K = 5 & so on"))
    assert "<script>" not in html
    assert "<b>a</b>" not in html
    assert "&lt;b&gt;a&lt;/b&gt;" in html
    assert "<b>2.50</b>" in html
    assert "--share:0.67'>2.00" in html
    assert html.count("<tr>") == 3
    assert "K = 5 &amp; so on" in html
    assert "#0072B2" in html
    assert "decodes plainly" in team_html(Team(()))
