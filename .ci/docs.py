"""Check what the pages say about the repository, and the size of its functions; exit code 1 if something is wrong.

Of each page: links, paths, tests and goals of make that exist, lines of at most 120 columns, and one title. Of
docs/mechanisms.md: objects that exist and are short. Of the package and experiments/papers: cited papers that
docs/references.md lists, functions of at most 60 lines without docstrings and comments, and no two modules of one name.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "attention_jax"
PAPERS = ROOT / "experiments" / "papers"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tests/TRIED.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = ("results.md",)
LONGEST = 60
Function = ast.FunctionDef | ast.AsyncFunctionDef


def read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def missing_paths(page: Path) -> Iterator[str]:
    """Links, paths in backquotes and tests that are not there."""
    text = read_text(page)
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("http")}
    yield from (f"no file {link}" for link in links if not (page.parent / link).exists())
    paths = set(re.findall(r"`((?:attention_jax|experiments|tests|docs)/[\w./-]*)", text))
    paths |= {f"attention_jax/{path}" for path in re.findall(r"`((?:ops|models)/[\w/]+\.py)", text)}
    yield from (f"no file {path}" for path in paths if "NAME" not in path and not (ROOT / path).exists())
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text):
        if not (ROOT / path).exists() or f"def {name}(" not in read_text(ROOT / path):
            yield f"no test {path}::{name}"


def missing_goals(page: Path) -> Iterator[str]:
    goals = set(re.findall(r"^([a-z]+):", read_text(ROOT / "Makefile"), re.MULTILINE))
    named_goals = re.findall(r"(?:`|^)make ([a-z]+)(?:`|\s)", read_text(page), re.MULTILINE)
    yield from (f"no goal `make {goal}`" for goal in {*named_goals} - goals)


def titles(page: Path) -> list[str]:
    return re.findall(r"^# (.+)$", without_blocks(read_text(page)), re.MULTILINE)


def layout(page: Path) -> Iterator[str]:
    """Long lines of prose; a page without a title, with two, or with that of another page."""
    prose = without_blocks(read_text(page))
    yield from (f"more than 120 columns: {x[:60]}..." for x in prose.splitlines() if len(x) > 120 and x[0] != "|")
    page_titles = titles(page)
    if len(page_titles) != 1 and "{include}" not in read_text(page):
        yield f"{len(page_titles)} headings of the first level"
    yield from (
        f"has the title of {other_page.name}"
        for other_page in PAGES
        if other_page != page and {*page_titles} & {*titles(other_page)}
    )


def lines_of(node: ast.AST, text: str) -> int:
    """The length of a function or class in a file's `text`; docstrings, its own and those inside, and lines of comments
    do not count."""
    lines = [line for line in text.splitlines()[node.lineno - 1 : node.end_lineno] if line.lstrip()[:1] != "#"]
    inside = [x for x in ast.walk(node) if isinstance(x, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(x)]
    return len(lines) + len(node.decorator_list) - sum(x.body[0].end_lineno - x.body[0].lineno + 1 for x in inside)


def object_lines(path: Path, name: str) -> int | None:
    """The length of "function", "Class" or "Class.method" of a file; None if there is none."""
    text = read_text(path) if path.exists() else ""
    node = ast.parse(text)
    for name_part in name.split("."):
        [*matches] = (child for child in getattr(node, "body", ()) if getattr(child, "name", "") == name_part)
        node = matches[0] if matches else None
    return node and lines_of(node, text)


def mechanisms() -> Iterator[str]:
    """Rows of docs/mechanisms.md whose object is not one of at most 60 lines or whose experiment does not exist."""
    text = re.sub(r"\[(`[^`]+`)\]\([^)]*\)", r"\1", read_text(ROOT / "docs/mechanisms.md"))
    rows = [re.split(r"[ `]*\|[ `]*", line) for line in text.splitlines() if line[:1] == "|"]
    rows = [row for row in rows if ":" in row[3] and "-" not in row[3]]
    experiments = {path.stem for path in (ROOT / "experiments").glob("*.py")} | {"-", "every one"}
    if len(rows) < 40 or len({row[3] for row in rows}) < len(rows):
        yield f"{len(rows)} rows, or one object in two of them"
    for row in rows:
        module, name = row[3].split(":")
        directory = PAPERS.parent if module.startswith("papers.") else PACKAGE
        lines = object_lines(directory / f"{module.replace('.', '/')}.py", name)
        if lines is None or lines > LONGEST:
            yield f"{row[1]}: {row[3]} has {lines} lines"
        if row[4] not in experiments:
            yield f"{row[1]}: no experiment {row[4]}"


def citations() -> Iterator[str]:
    """Each "Author et al. year" of the package and of the pages written by hand that no row of references.md has."""
    rows = re.findall(r"^\| ([^|]+\d{4}[^|]*) \|", read_text(ROOT / "docs/references.md"), re.MULTILINE)
    listed = {(row.split()[0].rstrip(","), year) for row in rows for year in re.findall(r"\d{4}", row)}
    texts = [page for page in PAGES if page.name not in (*GENERATED, "references.md")]
    text = " ".join(read_text(path) for path in [*texts, *PACKAGE.rglob("*.py"), *PAPERS.glob("*.py")])
    cited = set(re.findall(r"\b([A-Z][\w-]+) et al\.,?\s+\(?((?:19|20)\d\d)", text))
    yield from (f"{author} et al. {year} is not listed" for author, year in sorted(cited - listed))


def code() -> Iterator[str]:
    """Functions that are too long, and names that two modules share; a view may be named like its task."""
    paths = sorted(PACKAGE.rglob("*.py"))
    for path in (*paths, *sorted(PAPERS.glob("*.py"))):
        functions = (node for node in ast.walk(ast.parse(read_text(path))) if isinstance(node, Function))
        long = [node for node in functions if lines_of(node, read_text(path)) > LONGEST + len(node.decorator_list)]
        yield from (f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} is longer than 60 lines" for node in long)
    views = {path for path in (PACKAGE / "views").glob("*.py") if (PACKAGE / "tasks" / path.name).exists()}
    names = Counter(path.stem for path in {*paths} - views if path.stem != "__init__")
    yield from (f"{count} modules are named {name}" for name, count in names.items() if count > 1)


def main() -> int:
    problems = [
        f"{page.relative_to(ROOT)}: {problem}"
        for page in PAGES
        for check in (missing_paths, missing_goals, layout)
        for problem in check(page)
    ]
    for place, check in (("docs/mechanisms.md", mechanisms), ("docs/references.md", citations)):
        problems += [f"{place}: {problem}" for problem in check()]
    problems += code()
    print("\n".join(problems) if problems else "docs: ok")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
