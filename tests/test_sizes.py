"""The size of the package is watched: no folder outgrows its row in the table of docs/design.md."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"\| `([\w/]+)` \| ([\d,]+) \| .+ \|")
SHARE, LEAST = 0.02, 25
"""A folder may outgrow its line by this share of it, and by this many lines at least."""


def sizes_of(page: str) -> dict[str, int]:
    """{folder: its lines} in the table under "## Size of each folder"."""
    section = page.partition("\n## Size of each folder\n")[2].partition("\n## ")[0]
    return {name: int(lines.replace(",", "")) for name, lines in ROW.findall(section)}


def count_lines(root: Path, folders) -> dict[str, int]:
    """{folder: lines of the Python files in it}, without those in other folders inside of it."""
    counts = dict.fromkeys(folders, 0)
    for top in {name.partition("/")[0] for name in folders}:
        for path in (root / top).rglob("*.py"):
            homes = [name for name in folders if path.is_relative_to(root / name)]
            counts[max(homes, key=len)] += len(path.read_text(encoding="utf-8").splitlines())
    return counts


def too_large(lines: dict[str, int], counts: dict[str, int]) -> list[str]:
    return [name for name, size in lines.items() if counts[name] > size + max(SHARE * size, LEAST)]


SIZES = sizes_of((ROOT / "docs/design.md").read_text(encoding="utf-8"))


def test_every_package_has_a_row():
    packages = {f"attention_jax/{path.parent.name}" for path in (ROOT / "attention_jax").glob("*/__init__.py")}
    assert packages | {"attention_jax", "benchmarks", "tests"} <= SIZES.keys()
    assert [name for name in SIZES if not (ROOT / name).is_dir()] == []


def test_no_folder_outgrows_its_row():
    counts = count_lines(ROOT, SIZES)
    for name in too_large(SIZES, counts):
        pytest.fail(
            f"{name} has {counts[name]:,} lines, its row in docs/design.md {SIZES[name]:,}: shorten it, or edit the "
            "row in the same commit, whose message says for what"
        )


def test_a_folder_is_counted_without_those_inside(tmp_path):
    """By hand: 3 lines in `a`, 2 in `a/b`; 100 lines may become 125, and 5,000 lines 5,100."""
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/x.py").write_text("1\n\n3\n")
    (tmp_path / "a/b/c/y.py").write_text("1\n2")
    (tmp_path / "a/notes.md").write_text("no code\n")
    assert count_lines(tmp_path, ["a", "a/b"]) == {"a": 3, "a/b": 2}
    lines = {"small": 100, "large": 5000}
    assert too_large(lines, {"small": 125, "large": 5100}) == []
    assert too_large(lines, {"small": 126, "large": 5101}) == ["small", "large"]
