"""The package as it is shipped: what its files promise each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import specdemo

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ["pip install . && python app.py", 'pip install ".[test]" && pytest -n auto --dist loadfile']


@pytest.fixture(scope="session")
def project() -> dict[str, object]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def readme() -> str:
    return (ROOT / "README.md").read_text("utf-8")


def test_readme_begins_with_its_two_commands() -> None:
    assert re.findall(r"```bash\n(.*?)\n```", readme(), flags=re.DOTALL)[:2] == COMMANDS


def test_ci_runs_the_commands_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    (found,) = re.findall(r"sed -n '(.*?)' README.md", script)
    reading = ["bash", "-c", f"sed -n '{found}' README.md | head -n 2"]
    assert subprocess.check_output(reading, cwd=ROOT, text=True).splitlines() == COMMANDS
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")]).returncode == 0
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_every_option_of_the_command_line_examples_exists() -> None:
    from specdemo.cli import parser

    for command in re.findall(
        r"^(?:.*\| )?specdemo ((?:generate|serve|list|doctor|bench).*?)(?:#.*)?$", readme(), re.M
    ):
        argv = re.findall(r'"([^"]*)"|(\S+)', command)
        parser().parse_args([quoted or bare for quoted, bare in argv])


@pytest.mark.model
def test_python_example_of_the_readme_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", readme(), flags=re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})


def test_version_and_licence(project: dict[str, dict[str, object]]) -> None:
    assert project["project"]["version"] == specdemo.__version__
    assert project["project"]["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text("utf-8")
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_what_is_imported_is_required(project: dict[str, dict[str, list[str]]]) -> None:
    from tests.test_imports import MODULES, imports

    imported = {name.split(".")[0] for path in MODULES for name in imports(path)} - set(sys.stdlib_module_names)
    required = {re.split(r"[\s;<>=!\[]", text)[0].replace("-", "_") for text in project["project"]["dependencies"]}
    assert imported - {"specdemo", "tomli", "tomllib", "__future__"} <= required


def test_wheel_contains_code_and_data(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for folder in ("specdemo", "assets", "data"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = f"from setuptools.build_meta import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    name = subprocess.check_output([sys.executable, "-c", build], cwd=source, text=True, timeout=120).split()[-1]
    with zipfile.ZipFile(tmp_path / name) as wheel:
        packed = set(wheel.namelist())
    wanted = {str(p.relative_to(ROOT)) for p in (ROOT / "specdemo").rglob("*") if p.is_file()}
    wanted |= {
        f"specdemo/{p.relative_to(ROOT)}" for f in ("assets", "data") for p in (ROOT / f).rglob("*") if p.is_file()
    }
    wanted = {name for name in wanted if "__pycache__" not in name}
    assert wanted <= packed
    assert not {name for name in packed if not name.startswith("specdemo")}
    assert any(name.endswith("licenses/LICENSE") for name in packed)
    assert any(name.endswith("entry_points.txt") for name in packed)


def test_examples() -> None:
    lines = (ROOT / "data" / "examples.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert all(set(row) == {"id", "domain", "prompt"} for row in rows)
    assert len({row["id"] for row in rows}) == len({row["prompt"] for row in rows}) == len(rows)
    domains = {"code", "maths", "sql", "translation", "summarisation", "science", "writing", "questions"}
    assert {row["domain"] for row in rows} == domains
    assert min(sum(row["domain"] == domain for row in rows) for domain in domains) >= 3


def test_container_is_an_ordinary_user_and_listens_where_it_says() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert steps[0] == ["FROM", "python:3.12-slim"]
    assert ["EXPOSE", "7860"] in steps
    assert any(kind == "HEALTHCHECK" and "127.0.0.1:7860" in rest for kind, rest in steps)
    user = steps.index(["USER", "1000"])
    assert "--uid 1000" in " ".join(rest for _, rest in steps[:user])
    assert all("pip install --user" in rest for kind, rest in steps[user:] if kind == "RUN")
    torch_of_the_container = re.findall(r'"(torch[^"]*)"', text)
    assert torch_of_the_container[0] in (ROOT / "pyproject.toml").read_text("utf-8")
