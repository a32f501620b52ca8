"""Recorded worlds: what every arm of a real pool would do at every position of real answers, in one file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdemo.evaluation.worlds import Floats
from specdemo.types import SpecdemoError

Ints = NDArray[np.int64]
BLOCKS = (1, 2, 4, 8)  # positions of the evaluations that are timed


@dataclass(frozen=True, slots=True)
class Recorded:
    """One greedy answer.

    Attributes:
        prompt, tokens: token ids.
        runs: [positions, arms] tokens that would be accepted if the arm drafted its longest draft there: real drafts.
        acceptance: [positions, arms] 1 - TV(p, q), teacher-forced: 0 or 1, or between for what covers part of p.
        draft_ms: [2, arms] time of a draft of one token, and of the longest; reading a position included.
        verify_ms: time of a target forward. ``evaluation_ms``: [blocks] of all arms judging ``BLOCKS`` positions.
    """

    id: str
    domain: str
    prompt: Ints
    tokens: Ints
    runs: Ints
    acceptance: Floats
    draft_ms: Floats
    verify_ms: float
    evaluation_ms: Floats


@dataclass(slots=True)
class Recording:
    """A recorded world.

    Attributes:
        pool: its name. ``hash``: of its files. ``k``: draft length asked for.
        names, families, lengths: of the arms.
        alternate: 0, or texts are pieces of so many tokens of two answers of different domains, in turns.
    """

    pool: str
    hash: str
    k: int
    names: tuple[str, ...]
    families: tuple[str, ...]
    lengths: tuple[int, ...]
    answers: list[Recorded] = field(default_factory=list)
    alternate: int = 0

    @property
    def name(self) -> str:
        """Of the world."""
        return f"{self.pool}, recorded"

    @property
    def arms(self) -> int:
        """How many."""
        return len(self.names)

    def round_ms(self) -> Floats:
        """[arms, k + 1] median time of a round with each draft length; column 0 is plain decoding."""
        one, longest = self._median("draft_ms")
        steps = np.maximum(np.array(self.lengths) - 1, 1)
        slope = np.where(np.array(self.lengths) > 1, np.maximum(0, longest - one) / steps, one)
        table: Floats = one[:, None] + slope[:, None] * (np.arange(self.k + 1) - 1)
        table[:, 0] = 0
        table += self._median("verify_ms")
        return table

    def evaluation_ms(self) -> tuple[float, float]:
        """Time of an evaluation of all arms: at once, and per position; a line through the medians."""
        median = self._median("evaluation_ms")
        slope = max(0.0, float(np.polyfit(BLOCKS, median, 1)[0]))
        return max(0.0, float(median.mean() - slope * np.mean(BLOCKS))), slope

    def _median(self, name: str) -> Floats:
        found = np.array([getattr(answer, name) for answer in self.answers])
        if not len(found) or np.isnan(found).all(0).any():
            raise SpecdemoError(
                f"The {len(found)} recorded answers are too short to tell what drafts and evaluations cost. Record "
                f"longer ones, at least one of {max(sum(BLOCKS), self.k) + 1} tokens, into a new file."
            )
        median: Floats = np.nanmedian(found, axis=0)
        return median


def save(recording: Recording, path: Path) -> None:
    """Write a recording as an .npz file, at once or not at all."""
    flat: dict[str, Any] = {
        name: np.array(getattr(recording, name)) for name in ("pool", "hash", "k", "names", "families", "lengths")
    }
    for i, answer in enumerate(recording.answers):
        flat |= {f"{i}/{f.name}": np.array(getattr(answer, f.name)) for f in fields(answer)}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part.npz")
    np.savez_compressed(unfinished, **flat)
    os.replace(unfinished, path)


def load(path: Path, alternate: int = 0) -> Recording:
    """Read a file of :func:`save`.

    Raises:
        SpecdemoError: there is no such file, or it holds something else; ``alternate`` is out of range.
    """
    if alternate < 0:
        raise SpecdemoError(f"alternate is {alternate}; it must be at least 0 (0: answers one by one).")
    try:
        with np.load(path, allow_pickle=False) as file:
            made = Recording(
                str(file["pool"]), str(file["hash"]), int(file["k"]), tuple(file["names"].tolist()),
                tuple(file["families"].tolist()), tuple(file["lengths"].tolist()), alternate=alternate,
            )  # fmt: skip
            count = sum(name.endswith("/id") for name in file.files)
            made.answers = [_answer({f.name: file[f"{i}/{f.name}"] for f in fields(Recorded)}) for i in range(count)]
            return made
    except (OSError, ValueError, KeyError) as error:
        raise SpecdemoError(
            f"The recorded world {path} cannot be read ({error}). Record one with specdemo evaluate record."
        ) from error


def _answer(arrays: dict[str, NDArray[np.generic]]) -> Recorded:
    plain = {name: array.item() if array.ndim == 0 else array for name, array in arrays.items()}
    return Recorded(**plain)  # type: ignore[arg-type]


def pieces(recording: Recording, i: int) -> list[tuple[Recorded, int, int]]:
    """What text i is made of: answers, with first and last position. One answer, or two in turns."""
    answer = recording.answers[i]
    if not recording.alternate:
        return [(answer, 0, len(answer.tokens))]
    others = [*recording.answers[i + 1 :], *recording.answers[:i]]
    other = next((o for o in others if o.domain != answer.domain), None)
    if other is None:
        raise SpecdemoError("All recorded answers are of one domain; there is nothing to alternate.")
    n = recording.alternate
    cuts = [(a, s, min(s + n, len(a.tokens))) for a in (answer, other) for s in range(0, len(a.tokens), n)]
    return sorted(cuts, key=lambda cut: cut[1])  # stable: the first answer's piece before the other's


def joined(parts: Sequence[tuple[Recorded, int, int]], k: int) -> tuple[Ints, Floats, Floats]:
    """Runs and acceptance [positions, arms] of a text, and how good each arm is in each part: its mean run there.

    A run ends with its part: the token it is cut at stands in for the target's own.
    """
    runs, shown, mean = [], [], []
    for answer, begin, end in parts:
        left = np.arange(end - begin - 1, -1, -1)[:, None]
        runs.append(np.minimum(np.minimum(answer.runs[begin:end], left), k))
        shown.append(answer.acceptance[begin:end])
        mean.append(np.broadcast_to(runs[-1].mean(0), runs[-1].shape))
    return np.concatenate(runs), np.concatenate(shown), np.concatenate(mean)
