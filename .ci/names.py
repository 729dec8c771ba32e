"""Report identifiers that say nothing about what they hold; exit code 1 if there are any.

    python .ci/names.py                     the package, experiments, benchmarks, tests, notebooks and these scripts
    python .ci/names.py --count DIRECTORY   shares in other code, such as an installed package

A vague name is an everyday word alone, such as `found` or `given`, as the name of a variable, parameter, function or
class: a value is named by what it is (`result`, `logits`, `num_tokens`). A participle is the first word of a function's
name of one or two words, such as `loaded`: a function is a verb with its object (`load_pairs`), a noun
(`attention_mass`), or `is_` and `has_`.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("attention_jax", "experiments", "benchmarks", "tests", "docs", ".ci")
VAGUE = frozenset(
    [
        "after",
        "asked",
        "before",
        "begun",
        "beside",
        "came",
        "done",
        "drawn",
        "everything",
        "found",
        "given",
        "got",
        "held",
        "here",
        "kept",
        "known",
        "made",
        "meant",
        "more",
        "named",
        "noted",
        "one",
        "ones",
        "others",
        "ours",
        "own",
        "part",
        "parts",
        "put",
        "rest",
        "said",
        "seen",
        "settled",
        "shown",
        "some",
        "something",
        "such",
        "taken",
        "theirs",
        "there",
        "thing",
        "things",
        "told",
        "wanted",
        "went",
        "what",
    ]
)
PARTICIPLES = frozenset(
    [
        "begun",
        "bound",
        "broken",
        "brought",
        "built",
        "chosen",
        "come",
        "done",
        "drawn",
        "found",
        "given",
        "gone",
        "grown",
        "held",
        "kept",
        "known",
        "laid",
        "led",
        "left",
        "lost",
        "made",
        "meant",
        "met",
        "paid",
        "said",
        "seen",
        "sent",
        "shown",
        "sold",
        "spent",
        "spread",
        "taken",
        "thrown",
        "told",
        "understood",
        "won",
        "written",
    ]
)
NO_PARTICIPLES = frozenset(["bed", "embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed"])
ADJECTIVES = frozenset(
    [
        "chunked",
        "deferred",
        "detached",
        "expected",
        "failed",
        "fixed",
        "fused",
        "gated",
        "integrated",
        "learned",
        "masked",
        "pooled",
        "repeated",
        "scaled",
        "sharded",
        "squared",
        "undecided",
        "unmasked",
        "unsupported",
        "weighted",
    ]
)
"""Participles that are part of a term, before its noun: `masked_softmax`, `expected_seconds`."""
EXCEPTIONS = {
    "attention_jax/declarations.py": "after",  # a field of claims, which are frozen
    "attention_jax/data/pairs.py": "seen",  # fields that are stored with a run
    "attention_jax/data/text_windows.py": "known",
    "attention_jax/data/stream.py": "here",  # in docs/streaming.md
    "attention_jax/pretrained/exchange.py": "nested",  # in docs/weights.md
    "experiments/heads_of_a_real_model.py": "after",  # of frozen claims
    "experiments/laws.py": "after",
    "experiments/ntm_recall.py": "after",
    "experiments/softmax_in_a_real_model.py": "after",
}


def bindings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The (line, name) of everything that a module names."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                yield node.lineno, name


def functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The (line, name) of all functions, and of names that are bound to a lambda."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda()):
                yield node.lineno, name


def is_vague(name: str) -> bool:
    return name.strip("_") in VAGUE


def is_participle(name: str) -> bool:
    """Whether a function's name of at most two words begins with a participle that is no adjective of a term."""
    first, *following = name.strip("_").lower().split("_")
    if len(following) > 1 or name.startswith("__") or (following and first in ADJECTIVES):
        return False
    return first in PARTICIPLES or (len(first) > 3 and first.endswith("ed") and first not in NO_PARTICIPLES)


def problems(path: Path) -> Iterator[str]:
    """A line for each vague name and each participle of a file."""
    tree, place = ast.parse(path.read_text(encoding="utf-8")), path.relative_to(ROOT).as_posix()
    for kind, names, is_wrong in (("vague name", bindings, is_vague), ("participle", functions, is_participle)):
        for line, name in names(tree):
            if is_wrong(name) and name != EXCEPTIONS.get(place):
                yield f"{place}:{line}: {kind} {name!r}"


def count(folder: str) -> str:
    """The shares of vague bindings and of participles among functions, over the files of a folder."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).rglob("*.py"))]
    names = [name for tree in trees for _, name in bindings(tree)]
    defined = [name for tree in trees for _, name in functions(tree)]
    vague, participles = sum(map(is_vague, names)), sum(map(is_participle, defined))
    return (
        f"{folder}: {vague} of {len(names)} bindings are vague ({vague / max(len(names), 1):.2%}), "
        f"{participles} of {len(defined)} functions are participles ({participles / max(len(defined), 1):.2%})"
    )


def main(words: list[str]) -> int:
    if words[:1] == ["--count"]:
        print("\n".join(map(count, words[1:])))
        return 0
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    lines = [line for path in paths for line in problems(path)]
    print("\n".join([*lines, f"{len(lines)} names; see CONTRIBUTING.md"]) if lines else "names: ok")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
