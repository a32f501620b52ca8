import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from sqlite_utils import Database

from specdemo import rows, writer
from specdemo.metrics import summarise
from specdemo.migrations import immediate, migrations
from specdemo.store import Store, default_db
from specdemo.types import Evaluated, Message, Round, Sampling, Snapshot, SpecdemoError
from tests.traces import make_request, make_round, make_snapshot, make_start, make_trace

INFO = {
    "version": "0",
    "git": "abc",
    "device": "cpu",
    "dtype": "float32",
    "threads": 2,
    "pool_hash": "h",
    "pool": {"a": 1},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BUSY", 0.2)
    monkeypatch.setattr(writer, "RETRY", 0.1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "runs.db")) as store:
        yield store


def start(store: Store, **changes: Any) -> str:
    return store.start_run(store.new_session(), make_request(**changes), "embedded", INFO)


def write(store: Store, rounds: list[Round], status: Any = "done", **changes: Any) -> str:
    run = start(store, **changes)
    for r in rounds:
        store.add_round(run, r)
    if status != "running":
        store.finish_run(run, status, summarise(rounds))
    return run


def sql(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def wait_for(condition: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def child(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process; its script finds tests/traces.py and this module's helpers."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


# ------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("seed", range(5))
def test_rounds_come_back_exactly(store: Store, seed: int) -> None:
    rounds = make_trace(seed, 50)
    run = store.load_run(write(store, rounds))
    assert run is not None
    assert run.rounds == rounds
    assert run.summary == json.loads(json.dumps(summarise(rounds).to_dict()))
    assert (run.status, run.pool, run.provenance, run.lost_rounds) == ("done", "embedded", INFO, 0)


def test_odd_rounds_come_back_exactly(store: Store) -> None:
    rounds = [
        make_round(0, (5, 6, 7), 2, 9, parents=(-1, -1, 1), path=(1, 2), tokens=(6, 7, 9), pieces=()),
        make_round(1, (), 0, 9, pieces=("a\x00b", "", "\U0001f389")),  # text of round 0, final only now
        make_round(2, (1,), 1, 9, arm=2, pieces=("${1}",),
                   snapshot=Snapshot("index", (float("inf"), None), (0.1, -0.0), (None, 1e-300))),
        make_round(3, (), 0, 2, pieces=(" <b>", "\r\n", ""), finish="eos", snapshot=Snapshot("choice", (), (), ())),
    ]  # fmt: skip
    run = store.load_run(write(store, rounds))
    assert run is not None
    assert run.rounds == rounds
    assert sql(store.path, "SELECT text FROM runs") == [("a\x00b\U0001f389${1} <b>\r\n",)]


def test_lone_surrogates_are_kept_in_json_and_replaced_in_text(store: Store) -> None:
    request = make_request(prompt="bad \ud83d\x00 prompt", stop=("\udc00",))
    run_id = store.start_run(None, request, "pool\ud800", INFO)
    store.add_round(run_id, make_round(0, (1,), 1, 2, pieces=("\ud83d", "x")))
    store.finish_run(run_id, "error", None, error="\udfff!")
    run = store.load_run(run_id)
    assert run is not None
    assert run.request == request
    assert (run.pool, run.error, run.rounds[0].pieces) == ("pool\ufffd", "\ufffd!", ("\ufffd", "x"))


def test_request_comes_back_exactly(store: Store) -> None:
    request = make_request(
        prompt=None,
        messages=(Message("system", "be"), Message("user", "hé\n")),
        options=MappingProxyType({"c": 0.5, "names": ["a"]}),
        sampling=Sampling(temperature=0.7, top_p=0.9),
        seed=2**63 - 1,
        stop=("\n\n", "}"),
        memory=((1, 2), ()),
    )
    run = store.load_run(store.start_run(None, request, "embedded", INFO))
    assert run is not None
    assert run.request == request
    assert (run.status, run.rounds, run.summary) == ("running", [], None)


def test_tables_hold_what_their_columns_say(store: Store) -> None:
    start_ = make_start(arms=("small@2", "small@5"), drafters=("small", "small"))
    write(store, [
        make_round(0, (5, 6, 7), 2, 9, arm=1, start=start_, draft_q=(0.1, 0.2, 0.3), p=(0.7, 0.8, 0.9), pieces=("a",),
                   snapshot=make_snapshot(2)),
        make_round(1, (), 0, 3, pieces=("b", "c"), snapshot=make_snapshot(2)),
    ])  # fmt: skip
    store.flush()
    assert sql(store.path, "SELECT token, id, piece, arm, drafter, round, position, p, q FROM tokens") == [
        (0, 5, "a", 1, "small", 0, 0, 0.7, 0.1),
        (1, 6, "b", 1, "small", 0, 1, 0.8, 0.2),
        (2, 9, "c", None, None, 0, 2, 0.9, None),
        (3, 3, None, None, None, 1, 0, 0.8, None),
    ]
    assert sql(store.path, "SELECT round, arm, name, kind, value, estimate, loss FROM arms WHERE round = 1") == [
        (1, 0, "small@2", "weight", 0.5, None, 0.25),
        (1, 1, "small@5", "weight", 0.5, None, 0.25),
    ]
    assert sql(store.path, "SELECT version, git, device, dtype, threads, pool_hash, seed, tokens FROM runs") == [
        ("0", "abc", "cpu", "float32", 2, "h", 0, 4)
    ]


def test_check_and_baseline_are_set_at_any_time(store: Store) -> None:
    run_id = start(store)
    store.set_baseline(run_id, {"tokens_per_second": 31.5})
    store.finish_run(run_id, "done", summarise([]))
    store.set_check(run_id, {"identical": True})
    run = store.load_run(run_id)
    assert run is not None
    assert (run.baseline, run.check) == ({"tokens_per_second": 31.5}, {"identical": True})


def test_ids_are_short_url_safe_and_sort_by_time(store: Store) -> None:
    ids = [start(store) for _ in range(200)]
    assert ids == sorted(set(ids))
    assert all(len(i) == 15 and i.isalnum() and i.isascii() for i in ids)
    assert [row["id"] for row in store.list_runs(limit=3)] == ids[:-4:-1]
    assert [row["id"] for row in store.list_runs(limit=2, before=ids[2])] == [ids[1], ids[0]]


def test_list_runs_filters_and_knows_the_text_of_unfinished_runs(store: Store) -> None:
    done = write(store, make_trace(1), prompt="Red APPLES")
    running = write(store, make_trace(2, 3, finish=None), "running", selector="hedgespec")
    listed = {row["id"]: row for row in store.list_runs()}
    assert listed[running]["text"] == summarise(make_trace(2, 3)).text
    assert listed[done]["mean_acceptance_length"] == summarise(make_trace(1)).mean_acceptance_length
    assert [row["id"] for row in store.list_runs(search="apples")] == [done]
    assert [row["id"] for row in store.list_runs(search=listed[running]["text"][:9])] == [running]
    assert [row["id"] for row in store.list_runs(status="running", selector="hedgespec")] == [running]
    assert store.list_runs(status="error") == []
    with pytest.raises(TypeError, match="colour"):
        store.list_runs(colour="red")


def test_nothing_stored_yet(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with closing(Store(blocked / "runs.db")) as store:
        assert store.load_run("x") is None
        assert store.list_runs() == []
    with closing(Store(tmp_path / "new" / "folder" / "runs.db")) as store:
        assert store.problem is None
        assert store.load_run("x") is None


def test_default_db_follows_specdemo_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path))
    assert default_db() == tmp_path / "runs.db"
    monkeypatch.delenv("SPECDEMO_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_db().name == "runs.db"
    assert "specdemo" in default_db().parts


# ---------------------------------------------------------------------------------------------- killed and not killed

WRITE_FOREVER = """
    import sys, time
    from tests.traces import make_request, make_round
    from specdemo.store import Store
    store = Store(sys.argv[1])
    run = store.start_run(store.new_session(), make_request(), "embedded", {})
    print(run, flush=True)
    for i in range(100_000):
        store.add_round(run, make_round(i, (1, 2), 1, 3))
        print(time.monotonic(), flush=True)
        time.sleep(0.02)
"""


def test_kill_9_loses_at_most_the_last_second(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    process = child(WRITE_FOREVER, path)
    assert process.stdout
    run_id = process.stdout.readline().strip()
    times = [float(process.stdout.readline()) for _ in range(100)]
    process.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    process.wait()
    with closing(Store(path)) as store:
        run = store.load_run(run_id)
        assert run is not None
        assert run.status == "interrupted"
        assert [r.index for r in run.rounds] == list(range(len(run.rounds)))
        assert len(run.rounds) >= sum(t < killed - 1 for t in times) > 20
    assert sql(path, "SELECT status FROM runs") == [("interrupted",)]
    assert not list(tmp_path.glob("*.lock"))


def test_a_run_of_another_living_process_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(Store(path)) as early:
        process = child(WRITE_FOREVER, path)
        assert process.stdout
        run_id = process.stdout.readline().strip()
        process.stdout.readline()
        wait_for(lambda: early.load_run(run_id))
        with closing(Store(path)) as late:
            mine = start(late)
            assert late.flush()
            for store in (early, late):
                assert {row["id"]: row["status"] for row in store.list_runs()} == {run_id: "running", mine: "running"}
        process.kill()
        process.wait()
        # nobody opens the file again: whoever reads sees it all the same
        assert early.list_runs(status="running") == []
        assert {row["id"] for row in early.list_runs(status="interrupted")} == {run_id, mine}


def test_a_process_that_ends_without_closing_loses_nothing(tmp_path: Path) -> None:
    script = WRITE_FOREVER.replace("100_000", "30").replace("0.02", "0")
    process = child(script, tmp_path / "runs.db")
    out, _ = process.communicate(timeout=60)
    with closing(Store(tmp_path / "runs.db")) as store:
        run = store.load_run(out.split()[0])
        assert run is not None
        assert (run.status, len(run.rounds)) == ("interrupted", 30)


# ------------------------------------------------------------------------------------------------- what may go wrong


def test_locked_database_holds_nobody_up_and_gets_everything_later(store: Store) -> None:
    store.flush()
    rounds = make_trace(3, 40)
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        began = time.perf_counter()
        run_id = write(store, rounds)
        assert time.perf_counter() - began < 0.1
        wait_for(lambda: store.problem)
        assert "lock" in str(store.problem)
        assert "43 events wait in memory" in str(store.problem)
        assert store.load_run(run_id) is None
    wait_for(lambda: store.problem is None)
    run = store.load_run(run_id)
    assert run is not None
    assert (run.rounds, run.status) == (rounds, "done")


def test_locked_when_opened(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with closing(Store(path)) as store:
            assert "lock" in str(store.problem)
            run_id = write(store, make_trace())
            other.rollback()
            wait_for(lambda: store.problem is None)
            assert store.load_run(run_id)


def test_what_cannot_be_kept_is_counted_and_said(tmp_path: Path) -> None:
    rounds = make_trace(4, 100)
    with closing(Store(tmp_path / "runs.db", limit=52)) as store, closing(sqlite3.connect(store.path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        run_id = write(store, rounds)
        wait_for(lambda: store.problem)
        assert "53 events wait in memory" in str(store.problem)
        assert "50 events could not be kept" in str(store.problem)
        other.rollback()
        wait_for(lambda: store.problem is None)
        run = store.load_run(run_id)
        assert run is not None
        assert (run.rounds, run.lost_rounds, run.status) == (rounds[:50], 50, "done")
        assert run.summary == json.loads(json.dumps(summarise(rounds).to_dict()))


def test_full_disk_by_page_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    def limited(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    pages = 40
    rounds = make_trace(5, 2000)
    monkeypatch.setattr(sqlite3, "connect", limited)
    with closing(Store(tmp_path / "runs.db")) as store:
        assert store.problem is None
        run_id = write(store, rounds)
        said: list[str] = []  # read once each time: a batch that just fits clears the problem for a moment
        wait_for(lambda: said.append(str(store.problem)) or "full" in said[-1])
        assert "Free some space" in said[-1]
        pages = 2**30
        wait_for(lambda: store.problem is None)
        run = store.load_run(run_id)
        assert run is not None
        assert run.rounds == rounds


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_full_disk(small_disk: Path) -> None:
    rounds = make_trace(6, 300)
    filler = small_disk / "filler"
    with closing(Store(small_disk / "runs.db")) as store:
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        run_id = write(store, rounds)
        wait_for(lambda: store.problem)
        assert "disk that holds" in str(store.problem)
        filler.unlink()
        wait_for(lambda: store.problem is None)
        run = store.load_run(run_id)
        assert run is not None
        assert run.rounds == rounds


def test_read_only_disk(small_disk: Path) -> None:
    with closing(Store(small_disk / "runs.db")) as store:
        old = write(store, make_trace())
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with closing(Store(small_disk / "runs.db")) as store:
        assert "read-only" in str(store.problem)
        new = write(store, make_trace())
        assert store.load_run(old)  # what is there can still be read
        assert store.load_run(new) is None
        subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
        wait_for(lambda: store.problem is None)
        assert store.load_run(new)


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with closing(Store(tmp_path / "file" / "runs.db")) as store:
        write(store, make_trace())
        assert "cannot be used" in str(store.problem)
        assert "--db" in str(store.problem)
    assert "23 events could not be kept" in str(store.problem)


@pytest.mark.parametrize("content", [b"not a database at all" * 1000, b"SQLite format 3\0" + b"\xff" * 8000])
def test_damaged_file_is_left_alone_until_it_is_moved_away(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(content)
    with closing(Store(path)) as store:
        run_id = write(store, make_trace())
        assert "damaged" in str(store.problem)
        assert path.read_bytes() == content
        with pytest.raises(SpecdemoError, match="Move it away"):
            store.list_runs()
        path.rename(tmp_path / "old.db")
        wait_for(lambda: store.problem is None)
        assert store.load_run(run_id)


def test_damaged_inside(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(Store(path)) as store:
        write(store, make_trace(7, 200))
    with path.open("r+b") as file:  # the first page, with the schema, stays whole
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with closing(Store(path)) as store:
        run_id = write(store, make_trace())
        wait_for(lambda: store.problem)
        assert "is damaged" in str(store.problem)
        path.rename(tmp_path / "old.db")
        wait_for(lambda: store.problem is None)
        assert store.load_run(run_id)


def test_database_of_a_later_version_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    Store(path).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('specdemo', 'm999', '')")
    before = path.read_bytes()
    with closing(Store(path)) as store:
        write(store, make_trace())
        assert "later version" in str(store.problem)
    assert path.read_bytes() == before


def test_a_file_of_the_version_before_is_read_and_extended(tmp_path: Path) -> None:
    """Its runs come back, and new ones have what it could not hold."""
    path, before = tmp_path / "runs.db", make_trace(2, 6)
    with closing(Database(path)) as db:
        migrations.apply(db, stop_before="m002_evaluations")
        row = {"id": "old", "status": "done", "owner": "x", "started_at": "2026-01-01"}
        db["runs"].insert({**row, **rows.run_row(make_request(), "embedded", {})})
        tokens = pieces = 0
        for r in before:
            for table, new in rows.round_change("old", r, tokens, pieces, before[0].start).rows.items():
                known = set(db[table].columns_dict)
                db[table].insert_all({k: v for k, v in row.items() if k in known} for row in new)
            tokens, pieces = tokens + len(r.tokens), pieces + len(r.pieces)
    start = make_start(evaluated=("a", "b"), lengths=(3, 1), families=("x", "x"), shadow_ms=2.0)
    evaluated = Evaluated(((0.5, 1.0), (0.25, 0.0)), ((1.0, 0.125), (0.0, 0.0)))
    after = [make_round(0, (1, 2), 1, 9, start=start, shadow_ms=0.5, realised=(0.5, 0.25), evaluated=evaluated)]
    with closing(Store(path)) as store:
        assert store.problem is None
        new_id = write(store, after)
        store.set_regret(new_id, {"estimated": {"regret": 1.5}})
        old, new = store.load_run("old"), store.load_run(new_id)
    assert old is not None
    assert new is not None
    assert (old.rounds, old.regret) == (before, None)
    assert (new.rounds, new.regret) == (after, {"estimated": {"regret": 1.5}})


def test_summaries_are_those_of_the_latest_finished_run_of_an_item(store: Store) -> None:
    for item, turn, status, n in (
        ("a", 0, "done", 3),
        ("a", 0, "done", 4),
        ("a", 1, "stopped", 5),
        ("b", 0, "done", 6),
    ):
        run = store.start_run(None, make_request(), "p", {}, item=item, turn=turn)
        store.finish_run(run, status, summarise(make_trace(1, n)))
        store.set_regret(run, {"estimated": {"regret": n}})
    found = store.summaries(["a", "c"])
    assert list(found) == [("a", 0)]
    assert found["a", 0]["num_spec_steps"] == found["a", 0]["regret"]["estimated"]["regret"] == 4
    assert store.summaries([]) == {}


def test_database_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE runs (mine)")
    with closing(Store(path)) as store:
        assert "another program" in str(store.problem)
    assert [name for (name,) in sql(path, "SELECT name FROM sqlite_master WHERE type = 'table'")] == ["runs"]


def test_deleted_file_is_made_again(store: Store) -> None:
    run_id = write(store, make_trace(8, 10, finish=None), "running")
    assert store.flush()
    for path in store.path.parent.glob("runs.db*"):
        path.unlink()
    store.add_round(run_id, make_round(10))
    assert store.flush()
    run = store.load_run(run_id)
    assert run is not None
    assert (run.status, run.rounds) == ("running", [])


def test_an_event_that_cannot_be_stored_does_not_hold_up_others(store: Store) -> None:
    rounds = make_trace(9, 10)
    broken = [*rounds[:6], replace(rounds[6], k=2**70), *rounds[7:]]
    run_id, other = write(store, broken), write(store, rounds)
    run, good = store.load_run(run_id), store.load_run(other)
    assert run is not None
    assert good is not None
    assert (run.rounds, run.status) == (rounds[:6], "done")
    assert (good.rounds, good.lost_rounds, store.problem) == (rounds, 0, None)
    assert store.flush()


# -------------------------------------------------------------------------------------------------------- many at once

WRITE_SOME = """
    import sys
    from tests.test_store import write_from_threads
    print(*write_from_threads(sys.argv[1]))
"""


def write_from_threads(path: str, threads: int = 6, runs: int = 2) -> list[str]:
    ids: list[str] = []
    with closing(Store(path)) as store:
        work = [
            threading.Thread(
                target=lambda n=n: ids.extend(write(store, make_trace(n, 30), seed=n) for _ in range(runs))
            )
            for n in range(threads)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    assert store.problem is None
    return ids


def test_threads_and_processes_write_at_once_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    processes = [child(WRITE_SOME, path) for _ in range(2)]
    ids = [run for process in processes for run in process.communicate(timeout=120)[0].split()]
    assert len(set(ids)) == 2 * 6 * 2
    with closing(Store(path)) as store:
        assert {row["id"] for row in store.list_runs(limit=100)} == set(ids)
        for run_id in ids:
            run = store.load_run(run_id)
            assert run is not None
            assert run.rounds == make_trace(run.request.seed, 30)
            assert run.status == "done"


def test_a_transaction_lets_nobody_write_between_its_reads_and_its_writes(store: Store) -> None:
    store.flush()
    with (
        closing(sqlite3.connect(store.path)) as mine,
        closing(sqlite3.connect(store.path, timeout=0)) as other,
        immediate(Database(mine)),
    ):
        mine.execute("SELECT count(*) FROM sessions").fetchone()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("INSERT INTO sessions VALUES ('x', '')")


def test_adding_a_round_costs_the_generation_next_to_nothing(store: Store) -> None:
    run_id = start(store)
    costs = []
    for r in make_trace(0, 1000):
        began = time.perf_counter()
        store.add_round(run_id, r)
        costs.append(time.perf_counter() - began)
    assert sorted(costs)[len(costs) // 2] < 0.2e-3


def test_closing_twice_and_using_a_closed_store_is_harmless(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    store.close()
    store.close()
    run_id = write(store, make_trace())
    assert not store.flush(0.1) or store.load_run(run_id) is None
