"""Mutation testing: which small wrong edits of the library do the default tests not see?

`python .ci/mutants.py` draws 60 edits of the packages below, the same ones for the same code and seed, applies each to
a copy of the last commit, runs the doctests of its module and the test files that name most of what it defines until
one test fails, and prints the survivors. A survivor is a hole in the tests, or an edit that changes nothing.
"""

import argparse
import ast
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("ops", "models", "interpret", "train", "data", "pretrained")
FILES = 3
"""Test files of a module, at most."""
SWAPS = {
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "/", ast.Mod: "//", ast.And: "or"},
    **{ast.Or: "and", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="},
    **{ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", default=PACKAGES, help="folders of attention_jax")
    parser.add_argument("--sample", type=int, default=60, help="number of edits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="print the edits and their tests, and run nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["git", "clone", "-q", ".", directory], check=True)
        root = Path(directory)
        modules = sorted(path for name in options.packages for path in (root / "attention_jax" / name).rglob("*.py"))
        edits = [(path, *edit) for path in modules for edit in edits_of(path.read_bytes())]
        sample = random.Random(options.seed).sample(edits, min(options.sample, len(edits)))
        tests = {path: relevant_tests(root, path) for path, *_ in sample}
        if not options.list and not passes(root, sorted({test for names in tests.values() for test in names})):
            sys.exit("a test fails without an edit")
        survivors = 0
        for path, start, end, text in sample:
            source = path.read_bytes()
            line = source[:start].count(b"\n") + 1
            edit = f"{path.relative_to(root)}:{line}: {source[start:end].decode()} -> {text}"
            if options.list:
                print(edit, *tests[path], sep="\n    ")
                continue
            path.write_bytes(source[:start] + text.encode() + source[end:])
            survived = passes(root, tests[path])
            path.write_bytes(source)
            survivors += survived
            print("survived" if survived else "killed  ", edit, flush=True)
        print(f"{len(sample) - survivors} of {len(sample)} edits failed a test" if not options.list else "")


def edits_of(source: bytes) -> Iterator[tuple[int, int, str]]:
    """The edits of a module: the bytes from `start` to `end` become `text`.

    >>> [text for *_, text in edits_of(b"x = a + 1 if b < 2 else not c")]
    ['(b) <= (2)', '3', '(a) - (1)', '2', '(c)']
    """
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    span = lambda node: (starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset)
    text = lambda node: f"({source[slice(*span(node))].decode()})"

    def visit(node) -> Iterator[tuple[int, int, str]]:
        match node:
            case ast.JoinedStr() | ast.Raise() | ast.AnnAssign(value=None):  # messages and types
                return
            case ast.BinOp(left, operator, right) | ast.Compare(left, [operator], [right]) if type(operator) in SWAPS:
                yield *span(node), f"{text(left)} {SWAPS[type(operator)]} {text(right)}"
            case ast.BoolOp(operator, values):
                yield *span(node), f" {SWAPS[type(operator)]} ".join(map(text, values))
            case ast.UnaryOp(ast.Not() | ast.USub(), operand):
                yield *span(node), text(operand)
            case ast.Constant(bool() | int() | float() as value):
                yield *span(node), str(not value if isinstance(value, bool) else value + 1)
        for name, children in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                for child in children if isinstance(children, list) else [children]:
                    if isinstance(child, ast.AST):
                        yield from visit(child)

    yield from visit(ast.parse(source))


def relevant_tests(root: Path, module: Path) -> list[str]:
    """The module, for its doctests, the tests of its name, and those that name most of its functions and classes."""
    body = ast.parse(module.read_bytes()).body
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)} | {module.stem}
    words = re.compile(rf"\b({'|'.join(sorted(names))})\b")
    counts = {path: len(set(words.findall(path.read_text()))) for path in sorted(root.glob("tests/**/test_*.py"))}
    package = module.relative_to(root / "attention_jax").parts[0]
    rank = lambda path: (path.stem != f"test_{module.stem}", f"tests/{package}/" not in str(path), -counts[path])
    chosen = [path for path in sorted(counts, key=rank) if counts[path]][:FILES]
    return [str(path.relative_to(root)) for path in (module, *chosen)]


def passes(root: Path, tests: list[str]) -> bool:
    """Whether the default tests pass; 15 minutes are too long."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    try:
        return subprocess.run([*command, *tests], cwd=root, capture_output=True, timeout=900).returncode == 0
    except subprocess.TimeoutExpired:
        return False


if __name__ == "__main__":
    main()
