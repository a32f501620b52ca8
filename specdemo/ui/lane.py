"""One thread that works for all visitors, one after another.

A thread of its own, for three reasons: a page that is slow to take its updates must not slow the decoding down (the
speed would be wrong); torch keeps modes and compiled code per thread, and the web server resumes a generator on any of
its threads; and a visitor can be told how many are ahead.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
FLUSH = 0.05  # seconds between two updates of a page: 20 a second look continuous
IDLE = 0.25  # seconds between two looks at an empty queue


class Job(Generic[T]):
    """Work in the lane. ``stop`` asks it to end; a job stopped before it began never starts."""

    def __init__(self, work: Callable[[threading.Event], Iterable[T]], stop: threading.Event, lane: Lane) -> None:
        self.stop = stop
        self._work, self._lane = work, lane
        self._results: queue.SimpleQueue[T | _End] = queue.SimpleQueue()

    @property
    def ahead(self) -> int:
        """Jobs that must end before this one starts; 0 once it has."""
        return self._lane.position(self)

    def run(self) -> None:
        """Called by the lane's thread."""
        error: BaseException | None = None
        try:
            if not self.stop.is_set():
                for result in self._work(self.stop):
                    self._results.put(result)
        except BaseException as raised:  # raised again where the results are read
            error = raised
        finally:
            self._results.put(_End(error))

    def batches(self, every: float = FLUSH) -> Generator[list[T], None, None]:
        """Results as they come, collected for ``every`` seconds, and an empty list now and then while none come.

        Raises what the work raised, after the results before it. Leaving the loop early stops the work.
        """
        flushed, end = -every, None
        try:
            while end is None:
                batch, end = self._take(IDLE)
                if batch and end is None:
                    time.sleep(max(0.0, min(every, flushed + every - time.monotonic())))
                    more, end = self._take(0)
                    batch += more
                flushed = time.monotonic() if batch else flushed
                yield batch
            if end.error:
                raise end.error
        finally:
            self.stop.set()

    def _take(self, wait: float) -> tuple[list[T], _End | None]:
        """Everything that is there, and the end if it is; waits for the first."""
        batch: list[T] = []
        try:
            item = self._results.get(timeout=wait) if wait else self._results.get_nowait()
            while not isinstance(item, _End):
                batch.append(item)
                item = self._results.get_nowait()
            return batch, item
        except queue.Empty:
            return batch, None


class _End:
    """The last thing in a job's results."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Lane:
    """The queue and its thread, which ends with the process."""

    def __init__(self) -> None:
        self._jobs: list[Job[Any]] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._serve, name="specdemo-lane", daemon=True).start()

    def submit(self, work: Callable[[threading.Event], Iterable[T]], stop: threading.Event | None = None) -> Job[T]:
        """Queue work; it is called with its stop flag once it is first in line."""
        job = Job(work, stop or threading.Event(), self)
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()
        return job

    def call(self, function: Callable[[], None]) -> Job[None]:
        """Queue a function that returns nothing."""

        def work(_: threading.Event) -> Iterable[None]:
            function()
            return ()

        return self.submit(work)

    def position(self, job: Job[Any]) -> int:
        """Jobs before this one."""
        with self._changed:
            return next((i for i, other in enumerate(self._jobs) if other is job), 0)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs)
                job = self._jobs[0]
            job.run()
            with self._changed:
                self._jobs.remove(job)
