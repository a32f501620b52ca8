"""Scoring forwards as compiled code: one package on disk per model and machine serves every shape, thread and process.

The forward is exported with rows and slots as free sizes, then compiled ahead of time (AOTInductor) with the weights
frozen into the layout the CPU multiplies fastest. ``torch.compile`` cannot do this: packed weights keep its graph cache
from storing anything, so every process would compile again, and it would compile once per shape.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from filelock import FileLock
from torch import Tensor

from specdemo.session import Forward, HFSession
from specdemo.slots import difference, tolerance
from specdemo.types import Proposal

if TYPE_CHECKING:
    from specdemo.target import HFTarget

LEFT = 24 * 3600  # seconds after which working files are those of a compilation that was killed
OPTIONS = {"freezing": True, "cpp.dynamic_threads": True}
log = logging.getLogger(__name__)


class Compiled:
    """The compiled forwards of one target: for chains, and (made when first needed) for trees.

    Attributes:
        note: why scoring runs eagerly although compilation was asked for; empty while it is compiled.
    """

    def __init__(self, target: HFTarget, folder: Path) -> None:
        self.target, self.folder = target, folder
        self.note = ""
        self.ready: dict[tuple[bool, tuple[int, ...]], Forward] = {}  # by kind of block and hidden states read
        self.lock = threading.Lock()
        self.key = ""
        if target.device.type != "cpu":
            self._give_up("compiled scoring is made for CPUs")

    def forward(self, trees: bool = False) -> Forward | None:
        """The compiled :meth:`HFTarget.forward`, waiting for compilation if need be; None where it cannot be had."""
        kind = (trees, self.target.layers)
        with self.lock:
            if not self.note and kind not in self.ready:
                try:
                    self.ready[kind] = self._load_or_compile(trees)
                except Exception as error:  # whatever a compiler, a full disk or an exotic model may raise
                    self._give_up(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")
            return None if self.note else self.ready[kind]

    def _give_up(self, reason: str) -> None:
        self.note = f"{self.target.name} is scored without compilation: {reason}"
        log.warning(self.note)

    def _load_or_compile(self, trees: bool) -> Forward:
        self.key = self.key or _fingerprint(self.target)
        layers = "-".join(map(str, self.target.layers)) or "none"
        slug = re.sub(r"[^\w.-]", "-", Path(self.target.name).name) or "model"
        name = f"{slug}-{str(self.target.dtype)[6:]}-{'tree' if trees else 'chain'}"
        path = self.folder / f"{name}-{self.key}-layers-{layers}.pt2"
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / f"{name}.lock"):
            if not path.exists():
                self._compile(path, trees)
                for stale in set(self.folder.glob(f"{name}-*.pt2")) - set(self.folder.glob(f"{name}-{self.key}-*.pt2")):
                    stale.unlink(missing_ok=True)  # hundreds of megabytes each
        package = torch._inductor.aoti_load_package(str(path))

        @torch.no_grad()
        def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
            logits, hidden = package(*(x for x in inputs if x is not None))
            return logits, hidden

        inputs, _ = _example(self.target, trees)
        eager, compiled = (f(*inputs)[0][0].double() for f in (self.target.forward, forward))
        error = difference(eager, compiled)
        if not error < tolerance(self.target.dtype):
            raise RuntimeError(f"compiled logits differ from eager ones (relative error {error:.2g})")
        return forward

    def _compile(self, path: Path, trees: bool) -> None:
        log.info("Compiling %s for this machine; done once, kept in %s", self.target.name, path)
        begin = time.perf_counter()
        inputs, sizes = _example(self.target, trees)
        part = path.with_name(f"part-{path.name}")
        with torch.no_grad(), _scratch(path.parent):
            exported = torch.export.export(_Scorer(self.target), inputs, dynamic_shapes=sizes, strict=False)
            torch._inductor.aoti_compile_and_package(exported, package_path=str(part), inductor_configs=dict(OPTIONS))
        part.replace(path)
        log.info("Compiled in %.0f s", time.perf_counter() - begin)


class _Scorer(torch.nn.Module):
    """The target's forward as the module that export wants."""

    def __init__(self, target: HFTarget) -> None:
        super().__init__()
        self.model = target.model
        self.scored = target.forward

    def forward(
        self,
        keys: list[Tensor],
        values: list[Tensor],
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        mask: Any,
        layout: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        return self.scored(keys, values, tokens, positions, slots, mask, layout)


def _example(target: HFTarget, trees: bool) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Example inputs of a forward, and which of their sizes are free: rows and slots."""
    session = HFSession(target, 272, 7, compiled=False)
    session.prefill([1, 2, 3])
    inputs = session.inputs(Proposal((1, 2, 3), (-1, -1, 0) if trees else None))
    free = torch.export.Dim.DYNAMIC
    cache = [{2: free}] * len(session.keys)
    mask: Any = {2: free, 3: free}
    if isinstance(inputs[5], dict):
        mask = dict.fromkeys(inputs[5], mask)
    sizes = [cache, cache, {1: free}, {1: free}, {0: free}, mask, {0: free, 1: free}]
    return (inputs, tuple(sizes)) if trees else (inputs[:6], (*sizes[:6],))


@contextmanager
def _scratch(folder: Path) -> Iterator[None]:
    """Inductor's working files (a copy of all weights among them) in a folder that goes away afterwards, and those of
    compilations that were killed long ago."""
    from torch._inductor import utils

    for left in folder.glob("part-*"):
        if left.is_dir() and time.time() - left.stat().st_mtime > LEFT:
            shutil.rmtree(left, ignore_errors=True)
    fresh = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache
    with tempfile.TemporaryDirectory(prefix="part-", dir=folder) as place, fresh(dir=place):
        yield


def _fingerprint(target: HFTarget) -> str:
    """Hash of all that compiled code depends on: weights, config, code, versions, processor."""
    digest = hashlib.blake2b(digest_size=10)
    for name, tensor in sorted(target.model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    processor = [getattr(torch.cpu, name)() for name in sorted(dir(torch.cpu)) if name.endswith("_supported")]
    versions = [torch.__version__, transformers.__version__, torch.backends.cpu.get_cpu_capability(), processor]
    code = [Path(__file__).with_name(name).read_text() for name in ("slots.py", "compiled.py")]
    digest.update(repr([target.model.config.to_json_string(), OPTIONS, versions, code]).encode())
    return digest.hexdigest()
