"""The import rule of the package, read from the source: who may import whom, and what stays out of where."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import specdemo

ROOT = Path(specdemo.__file__).parent
LEVELS = {  # a module imports only from levels below its own, or from its own
    **dict.fromkeys(("types", "times"), 0),
    **dict.fromkeys(("sampling", "verify", "limits", "text", "convert", "sources", "jsonl"), 1),
    **dict.fromkeys(("target", "session", "compiled", "slots", "tokens", "models"), 2),
    **dict.fromkeys(("estimators", "calibration"), 2),
    **dict.fromkeys(("drafters", "selectors", "feedback"), 3),
    **dict.fromkeys(("engine", "team", "pools"), 4),
    **dict.fromkeys(("metrics", "store", "rows", "migrations", "reading", "owner", "writer", "provenance"), 5),
    **dict.fromkeys(("record", "check", "bench", "costs", "training", "evaluation"), 6),
    **dict.fromkeys(("ui", "cli", "commands", "evaluate", "doctor"), 7),
}
MODULES = sorted(ROOT.rglob("*.py"))
HEAVY = {"torch", "transformers", "gradio", "accelerate", "gguf", "huggingface_hub", "plotly", "numpy"}


def imports(path: Path, when: str = "ever") -> Iterator[str]:
    """Full names that a module imports: "ever", or only "at start" (not in functions, not for type checkers)."""

    def skipped(node: ast.AST) -> bool:
        later = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        return (when == "at start" and later) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        )

    def visit(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                package = ".".join(("specdemo", *path.relative_to(ROOT).parent.parts)) if child.level == 1 else ""
                base = ".".join(part for part in (package, child.module) if part)
                yield from (f"{base}.{alias.name}" for alias in child.names)
            elif (when == "at start" and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            ):
                continue
            else:
                yield from visit(child)

    yield from visit(ast.parse(path.read_text("utf-8")))


def part(name: str) -> str | None:
    """The module or subpackage of specdemo that a full name belongs to."""
    pieces = name.split(".")
    return pieces[1] if pieces[0] == "specdemo" and len(pieces) > 1 and pieces[1] in LEVELS else None


def own_part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_every_module_has_a_level() -> None:
    parts = {own_part(path) for path in MODULES} - {"__init__"}
    assert parts <= set(LEVELS), f"give {parts - set(LEVELS)} a level in this test"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    own = own_part(path)
    for name in imports(path):
        other = part(name)
        if other is not None and own != "__init__":
            assert LEVELS[other] <= LEVELS[own], f"{path.name} imports {name}"


def outside(part_name: str, when: str = "ever") -> dict[str, set[str]]:
    """Top-level packages outside specdemo that each file of a part imports."""
    files = [path for path in MODULES if own_part(path) == part_name]
    assert files, part_name
    return {str(path.relative_to(ROOT)): {name.split(".")[0] for name in imports(path, when)} for path in files}


@pytest.mark.parametrize(
    ("part_name", "forbidden"),
    [
        ("types", HEAVY),
        ("engine", {"gradio", "sqlite3", "sqlite_utils", "transformers"}),
        ("selectors", {"torch", "transformers", "gradio", "sqlite_utils"}),
        ("metrics", {"torch", "transformers", "gradio", "sqlite_utils"}),
        ("store", {"torch", "transformers", "gradio"}),
        ("ui", {"torch", "transformers"}),
        ("drafters", {"gradio", "sqlite_utils", "transformers"}),
        ("verify", {"transformers", "gradio"}),
    ],
)
def test_libraries_stay_out(part_name: str, forbidden: set[str]) -> None:
    for file, names in outside(part_name).items():
        assert not names & forbidden, file


def test_command_line_starts_light() -> None:
    assert not outside("cli", "at start")["cli.py"] & HEAVY


def test_page_loads_without_torch() -> None:
    code = "import sys, specdemo.ui.app; assert not {'torch', 'transformers'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_the_reader_of_imports_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    module = tmp_path / "ui" / "x.py"
    module.parent.mkdir()
    module.write_text(
        "import torch.nn\nfrom . import lane\nfrom specdemo.types import Round\n"
        "if TYPE_CHECKING:\n    import gradio\ndef f():\n    from transformers import x\n"
    )
    assert list(imports(module)) == ["torch.nn", "specdemo.ui.lane", "specdemo.types.Round", "transformers.x"]
    assert "transformers.x" not in list(imports(module, "at start"))
