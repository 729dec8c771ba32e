"""Every bound that was ever committed, read from the repository's history.

Old versions of experiments/*.py are executed with a stand-in for this package: only `Claim` is kept, with the arguments
that it was called with, and everything else accepts whatever is done with it. So a file of any age can be read.
"""

import builtins
import json
import re
import subprocess
import types
from collections.abc import Iterator
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


def claims_in(source: str, name: str, directory: Path = Path()) -> list[Recorded]:
    """The claims of a version of NAME.py in `directory`."""

    def load(module, *args):
        return Package(module) if module.split(".")[0] in STANDS_IN else builtins.__import__(module, *args)

    namespace = {
        "__name__": name,
        "__file__": str(directory / f"{name}.py"),
        "__builtins__": vars(builtins) | {"__import__": load},
    }
    exec(compile(source, name, "exec"), namespace)
    return [claim for claim in namespace.get("CLAIMS", ()) if isinstance(claim, Recorded)]


class History:
    """The versions of the files of experiments/ in all commits of a repository, oldest commit first."""

    def __init__(self, repository: Path):
        self.repository = repository
        log = self.git("log", "--reverse", "--date-order", "--format=%H %cs", "--", "experiments")
        self.commits = [tuple(line.split()) for line in log.splitlines()]
        self.first: dict[Entry, int] = {}
        self.published: dict[Entry, set[float]] = {}
        self.kinds: dict[Entry, set[str]] = {}
        self.spreads: dict[tuple[Entry, tuple[float, float]], int] = {}
        self.results: dict[tuple[str, str, str], int] = {}
        self._read()

    def git(self, *words: str) -> str:
        command = ["git", "-C", str(self.repository), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def _read(self):
        seen = set()
        for number, (commit, _) in enumerate(self.commits):
            for line in self.git("ls-tree", "-r", commit, "experiments").splitlines():
                blob, path = line.split()[2], line.split("\t")[1]
                if (blob, path) not in seen:
                    seen.add((blob, path))
                    self._version(number, path, blob)

    def _version(self, number: int, path: str, blob: str):
        if match := re.fullmatch(r"experiments/([a-z]\w*)\.py", path):
            for claim in claims_in(self.git("cat-file", "blob", blob), match[1], self.repository / "experiments"):
                for entry in entries(match[1], claim.fields.get):
                    self.first.setdefault(entry, number)
                    if (value := claim.fields.get("published")) is not None:
                        self.published.setdefault(entry, set()).add(value)
                    if (kind := claim.fields.get("kind")) is not None:
                        self.kinds.setdefault(entry, set()).add(kind)
                    if (spread := claim.fields.get("spread")) is not None:
                        self.spreads.setdefault((entry, tuple(spread)), number)
        elif match := re.fullmatch(r"experiments/results/(\w+)\.json", path):
            content = json.loads(self.git("cat-file", "blob", blob))
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
