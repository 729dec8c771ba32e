"""The pages of the documentation name what exists: links, files, commands, experiments."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attention_jax import catalogue

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BEING_BUILT = pytest.mark.xfail(strict=True, reason="names files that are being built")
NAMES = {"NAME", "RUN", "mirror", "my_pairs"}
"""What stands for a name of one's own, and the experiments that docs/extend.md makes."""


@pytest.fixture(scope="module")
def commands() -> set[str]:
    """The commands that `launch.py --help` lists."""
    command = [sys.executable, "launch.py", "--help"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^  ([a-z-]+)\s", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("http")}
    missing = {link for link in links if not (page.parent / link).exists()}
    paths = set(re.findall(r"`((?:attention_jax|experiments|tests|docs)/[\w./-]*)", text))
    paths |= {f"attention_jax/{path}" for path in re.findall(r"`((?:ops|models)/\w+\.py)", text)}
    missing |= {path for path in paths if "NAME" not in path and not (ROOT / path).exists()}
    assert not missing, f"{page.name} names what is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_experiments_exist(page, commands):
    lines = re.findall(r"python launch\.py ([a-z][\w-]*)(?: ([a-z]\w*))?", page.read_text(encoding="utf-8"))
    assert {command for command, _ in lines} <= commands
    on_experiments = {name for command, name in lines if command in ("train", "reproduce", "sweep") and name}
    assert on_experiments <= {*catalogue.names(), *NAMES}
    benches = {path.stem.removeprefix("bench_") for path in (ROOT / "attention_jax" / "bench").glob("bench_*.py")}
    assert {name for command, name in lines if command == "bench" and name} <= benches


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_prose_are_short(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    long = [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long


def mechanisms() -> list[tuple[str, ...]]:
    """(mechanism, paper, object, experiment, book) of each row of docs/mechanisms.md."""
    lines = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8").splitlines()
    rows = [tuple(cell.strip(" `") for cell in line.strip("|").split("|")) for line in lines if line.startswith("|")]
    return [row for row in rows if ":" in row[2]]


def source_lines(place: str) -> list[str]:
    """The source of "module:name", a name of this package."""
    module, name = place.split(":")
    return inspect.getsource(getattr(importlib.import_module(f"attention_jax.{module}"), name)).splitlines()


def test_the_index_of_mechanisms_is_as_long_as_the_story():
    assert len(mechanisms()) >= 40 and len({row[2] for row in mechanisms()}) == len(mechanisms())


@pytest.mark.parametrize("row", mechanisms(), ids=lambda row: row[0])
def test_a_mechanism_is_one_object_of_one_page_and_its_experiment_exists(row):
    _, _, place, experiment, _ = row
    assert len(source_lines(place)) <= 60
    assert experiment in {*catalogue.names(), "-", "every one"}


@BEING_BUILT
def test_readme_reads_the_story_in_objects_as_long_as_it_says():
    rows = re.findall(
        r"^\| .* \| `(\S+)\.py:(\w+)` \| (\d+) \| .* \|$", PAGES[0].read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) >= 10
    for path, name, stated in rows:
        lines = len(source_lines(f"{path.replace('/', '.')}:{name}"))
        assert abs(lines - int(stated)) <= 3, f"README says {stated} lines for {path}.py:{name}; it has {lines}"
