"""Every bound that was ever committed, read from the repository's history.

Old versions of experiments/*.py are executed with a stand-in for this package: only `Claim` is kept, with the arguments
that it was called with, and everything else accepts whatever is done with it. So a file of any age can be read. What it
imports from another of these files, such as a function that makes claims, is that of the same commit.
"""

import builtins
import json
import re
import subprocess
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

FIELDS = ("text", "metric", "published", "source")
"""What the arguments of `Claim` without a name were, at all times."""
KEY = ("metric", "variant", "also", "minus", "epoch", "best", "last", "seeds_needed")
"""What says which number of which runs a bound is about."""
DEFAULTS = {"variant": "", "also": (), "minus": None, "epoch": None, "best": False, "last": 0, "seeds_needed": 0}


@dataclass(frozen=True)
class Entry:
    """A bound, or a bar for "beaten", of one number of an experiment."""

    experiment: str
    key: tuple
    """The values of KEY."""
    bounds: tuple[float | None, float | None] | None = None
    bar: float | None = None

    def __str__(self) -> str:
        key = ", ".join(f"{name}={value!r}" for name, value in zip(KEY, self.key) if value != DEFAULTS.get(name))
        return f"{self.experiment}: {key}: {f'bar {self.bar}' if self.bounds is None else self.bounds}"


def entries(experiment: str, fields) -> Iterator[Entry]:
    """The bound and the bar of a claim, given as a function from the name of a field to its value."""
    get = lambda name: DEFAULTS.get(name) if fields(name) is None else fields(name)
    key = tuple(tuple(get(name)) if name == "also" else get(name) for name in KEY)
    bounds, bar = (fields("at_least"), fields("at_most")), fields("bar")
    if bounds != (None, None):
        yield Entry(experiment, key, bounds=bounds)
    if bar is not None:
        yield Entry(experiment, key, bar=bar)


class Anything:
    """Accepts every call, attribute and operation."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *args, **kwargs):
        return Anything()

    __getitem__ = __truediv__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __call__

    def __iter__(self):
        return iter(())

    def __or__(self, other):
        return other if isinstance(other, dict) else self

    def __ror__(self, other):
        return other


class Recorded:
    """Stands in for `Claim`: its arguments by name."""

    def __init__(self, *args, **kwargs):
        self.fields = dict(zip(FIELDS, args, strict=False)) | kwargs
        self.fields["bar"] = self.fields.pop("beaten", None)


class Package(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Recorded if name == "Claim" else Anything()


STANDS_IN = ("attention_jax", "jax", "flax", "optax", "experiments")
IMPORTED = re.compile(r"^from experiments\.([a-z]\w*) import", re.MULTILINE)


def execute_source(
    source: str, name: str, directory: Path, read_source: Callable[[str], str | None]
) -> types.ModuleType:
    """A version of NAME.py as a module; `read_source(other)` is the source of experiments/OTHER.py then, or None."""

    def load(module, *args):
        package, _, module_name = module.partition(".")
        if package == "experiments" and (text := read_source(module_name)) is not None:
            return execute_source(text, module_name, directory, read_source)
        return Package(module) if package in STANDS_IN else builtins.__import__(module, *args)

    module = types.ModuleType(name)
    module.__file__ = str(directory / f"{name}.py")
    module.__builtins__ = vars(builtins) | {"__import__": load}
    exec(compile(source, name, "exec"), vars(module))
    return module


def claims_in(
    source: str, name: str, directory: Path = Path(), read_source: Callable[[str], str | None] = lambda other: None
) -> list[Recorded]:
    """The claims of a version of NAME.py in `directory`."""
    declared = vars(execute_source(source, name, directory, read_source)).get("CLAIMS", ())
    return [claim for claim in declared if isinstance(claim, Recorded)]


class History:
    """The versions of the files of experiments/ in all commits of a repository, oldest commit first."""

    def __init__(self, repository: Path):
        self.repository = repository
        log = self.git("log", "--reverse", "--date-order", "--format=%H %cs", "--", "experiments")
        self.commits = [tuple(line.split()) for line in log.splitlines()]
        self.texts: dict[str, str] = {}
        self.first: dict[Entry, int] = {}
        self.published: dict[Entry, set[float]] = {}
        self.kinds: dict[Entry, set[str]] = {}
        self.spreads: dict[tuple[Entry, tuple[float, float]], int] = {}
        self.results: dict[tuple[str, str, str], int] = {}
        self._read()

    def git(self, *words: str) -> str:
        command = ["git", "-C", str(self.repository), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def claims_at(self, commit: str, name: str) -> list[Recorded]:
        """The claims of experiments/NAME.py at a commit."""
        return self._claims(name, self._tree(commit))

    def _tree(self, commit: str) -> dict[str, str]:
        """{path: blob} of the files in experiments/ at a commit."""
        lines = self.git("ls-tree", "-r", commit, "experiments").splitlines()
        return {line.split("\t")[1]: line.split()[2] for line in lines}

    def _text(self, blob: str) -> str:
        """The text of an experiment's file, which others import at many commits; results are read once."""
        if blob not in self.texts:
            self.texts[blob] = self.git("cat-file", "blob", blob)
        return self.texts[blob]

    def _claims(self, name: str, tree: dict[str, str]) -> list[Recorded]:
        def read_source(module_name: str) -> str | None:
            path = f"experiments/{module_name}.py"
            return self._text(tree[path]) if path in tree else None

        return claims_in(read_source(name), name, self.repository / "experiments", read_source)

    def _with_imports(self, path: str, tree: dict[str, str]) -> frozenset[tuple[str, str]]:
        """The blobs that determine what is read from a file: its own, and those of the files that it imports."""
        blobs, left = set(), [path]
        while left:
            path = left.pop()
            if path in tree and (path, tree[path]) not in blobs:
                blobs.add((path, tree[path]))
                if path.endswith(".py"):
                    left += [f"experiments/{name}.py" for name in IMPORTED.findall(self._text(tree[path]))]
        return frozenset(blobs)

    def _read(self):
        visited = set()
        for number, (commit, _) in enumerate(self.commits):
            tree = self._tree(commit)
            for path in tree:
                if (version := (path, self._with_imports(path, tree))) not in visited:
                    visited.add(version)
                    self._version(number, path, tree)

    def _version(self, number: int, path: str, tree: dict[str, str]):
        if match := re.fullmatch(r"experiments/([a-z]\w*)\.py", path):
            for claim in self._claims(match[1], tree):
                for entry in entries(match[1], claim.fields.get):
                    self.first.setdefault(entry, number)
                    if (value := claim.fields.get("published")) is not None:
                        self.published.setdefault(entry, set()).add(value)
                    if (kind := claim.fields.get("kind")) is not None:
                        self.kinds.setdefault(entry, set()).add(kind)
                    if (spread := claim.fields.get("spread")) is not None:
                        self.spreads.setdefault((entry, tuple(spread)), number)
        elif match := re.fullmatch(r"experiments/results/(\w+)\.json", path):
            content = json.loads(self.git("cat-file", "blob", tree[path]))
            for run in content.get("runs", ()) if isinstance(content, dict) else ():
                for metric in {name for row in (run.get("metrics", {}), *run.get("history", ())) for name in row}:
                    self.results.setdefault((match[1], run.get("variant", ""), metric), number)

    def day(self, entry: Entry) -> str | None:
        """The day on which a bound was first committed, as YYYY-MM-DD; None before that."""
        return self.commits[self.first[entry]][1] if entry in self.first else None

    def after_result(self, entry: Entry, spread: tuple[float, float] | None = None) -> bool:
        """Whether a result of that number was committed before the bound, or its `spread`, or in the same commit."""
        metric, variant, *_ = entry.key
        result = self.results.get((entry.experiment, variant, metric))
        committed = self.first.get(entry) if spread is None else self.spreads.get((entry, spread))
        return committed is not None and result is not None and result <= committed
