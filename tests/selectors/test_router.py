"""The router: learns from prompts which arm they want, and says so when it cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specdemo.cli import main
from specdemo.evaluation.recorded import Recorded, Recording, save
from specdemo.evaluation.simulate import simulate
from specdemo.evaluation.texts import best_arms
from specdemo.selectors import make_selector
from specdemo.selectors.router import Router, features, probabilities
from specdemo.training.router import train_router
from specdemo.types import SpecdemoError


def prompts(count: int, seed: int) -> tuple[list[list[int]], list[str]]:
    """Two kinds of prompts over the same frequent tokens, each with rare ones of its own."""
    rng, kinds = np.random.default_rng(seed), np.arange(count) % 2
    texts = [np.where(rng.random(30) < 0.2, 1000 + 50 * kind + rng.integers(40, size=30), rng.integers(100, size=30))
             for kind in kinds]  # fmt: skip
    return [text.tolist() for text in texts], [("code", "maths")[kind] for kind in kinds]


def test_it_learns_and_is_read_again(tmp_path: Path) -> None:
    texts, best = prompts(80, 0)
    model = train_router(texts, best, tmp_path / "router.npz")
    new, wanted = prompts(40, 1)
    found = [model.arms[i] for i in probabilities(model, new).argmax(1)]
    assert np.mean([f == w for f, w in zip(found, wanted, strict=True)]) > 0.9
    arms = ["other", "maths", "code"]
    for prompt, arm in zip(new[:6], found[:6], strict=True):
        options = {"model": str(tmp_path / "router.npz")}
        selector = make_selector("router", arms, [4] * 3, np.random.default_rng(0), options, prompt)
        assert arms[selector.choose()] == arm
        assert selector.choose() == selector.choose()
        assert selector.snapshot().estimate[0] == 0
        assert sum(v or 0 for v in selector.snapshot().estimate) == pytest.approx(1)


def test_it_is_trained_on_a_recorded_world_and_found_by_the_pool_that_has_its_arms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arm a is right on one kind of prompts, b on the other; b costs more, but not that much; c is always right and
    costs too much. The router's regret is that of knowing the kind."""
    texts, kinds = prompts(60, 0)
    n, k = 12, 3
    left = np.minimum(np.arange(n - 1, -1, -1), k)[:, None]
    answers = []
    for i, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        runs = left * np.array([kind == "code", kind == "maths", True])
        ms = np.array([[1.0, 2.0, 60.0], [3.0, 6.0, 180.0]])
        answers.append(
            Recorded(str(i), kind, np.array(text), np.arange(n), runs, 1.0 * (runs > 0), ms, 20.0, np.ones(4))
        )
    made = Recording("pool", "hash", k, ("a", "b", "c"), ("x",) * 3, (k,) * 3, answers)
    assert best_arms(made) == [{"code": "a", "maths": "b"}[kind] for kind in kinds]
    save(made, tmp_path / "world.npz")
    (tmp_path / "assets").mkdir()
    model = tmp_path / "assets" / "router.npz"
    assert main(["train", "router", "--world", str(tmp_path / "world.npz"), "--out", str(model)]) == 0
    assert "a 30, b 30" in (said := capsys.readouterr().err)
    assert int(said.split("%")[0].split()[-1]) > 85
    routed, fixed = simulate(made, (f"router:model={model}", "fixed:arm=a"), 99, 60, k)
    assert routed.regret_mean == 0 < fixed.regret_mean
    assert not Router.offered(["a", "b"])
    monkeypatch.setattr("specdemo.selectors.router.shipped", lambda name: tmp_path / name)
    assert Router.offered(["a", "b", "d"])
    assert not Router.offered(["a", "d"])
    chosen = make_selector("router", ["d", "b", "a"], [k] * 3, np.random.default_rng(0), {}, texts[0])
    assert chosen.choose() == 2
    with pytest.raises(SpecdemoError, match="no model for this pool"):
        make_selector("router", ["d"], [k], np.random.default_rng(0), {})
    assert make_selector("router", [], [], np.random.default_rng(0), {}).choose() == -1  # K = 0: plain decoding


def test_features_see_order_and_are_bounded() -> None:
    one, other = features([[1, 2, 3, 4], [4, 3, 2, 1]])
    assert (one != other).any()
    assert features([[], [7]], ngram=1).shape == (2, 4097)
    assert np.linalg.norm(features([list(range(500))])[0]) <= np.sqrt(2) + 1e-6


def test_mistakes_are_named(tmp_path: Path) -> None:
    def make(**options: str) -> None:
        make_selector("router", ["a"], [4], np.random.default_rng(0), options)

    with pytest.raises(SpecdemoError, match="no model"):
        make()
    with pytest.raises(SpecdemoError, match="cannot be read"):
        make(model=str(tmp_path / "nothing.npz"))
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(SpecdemoError, match="cannot be read"):
        make(model=str(tmp_path / "text.npz"))
    train_router([[1], [2]], ["x", "y"], tmp_path / "new" / "r", steps=1)  # a file of just this name
    with pytest.raises(SpecdemoError, match="trained for x, y"):
        make(model=str(tmp_path / "new" / "r"))
    with pytest.raises(SpecdemoError, match="got 1 and 0"):
        train_router([[1]], [])
