"""Do the tests see the mutants? `python tests/mutants/run.py [NAME ...]`, or `make mutants`.

The checkout is copied once per job, and each mutant (edits_*.py) is applied to a copy, never to the checkout. Its tests
run without the slow ones (the default tier), then, if they passed, the slow ones. At the end the tests that failed are
run on the unchanged code, so that only the mutants can be to blame. The exit code is 1 if a mutant survives both tiers,
2 if one no longer fits the code or its tests are not found.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutants import (
    edits_claims,
    edits_command,
    edits_data,
    edits_interpret,
    edits_laws,
    edits_models,
    edits_ops,
    edits_pretrained,
    edits_sweep,
    edits_tasks,
    edits_train,
    edits_views,
)
from mutants.mutant import Mutant, apply_mutant, check_tests

ROOT = Path(__file__).parents[2]
MUTANTS = {
    "ops": edits_ops.MUTANTS,
    "models": edits_models.MUTANTS,
    "data": edits_data.MUTANTS,
    "train": edits_train.MUTANTS,
    "tasks": edits_tasks.MUTANTS,
    "views": edits_views.MUTANTS,
    "interpret": edits_interpret.MUTANTS,
    "laws": edits_laws.MUTANTS,
    "pretrained": edits_pretrained.MUTANTS,
    "sweep": edits_sweep.MUTANTS,
    "claims": edits_claims.MUTANTS,
    "command line": edits_command.MUTANTS,
}
MARKS = {"default": "not slow", "slow": "slow"}
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
TIMEOUT, HANGS = 1800, "no end"
"""Seconds of one pytest process, and what kills a mutant that makes the tests hang."""


class Broken(Exception):
    """The mutants do not fit the code or its tests: nothing can be said about the tests."""


def copy_checkout(root: Path, place: Path) -> Path:
    """Copy the files that git tracks or does not ignore to `place`; a directory `shared` beside the checkout is linked.

    Outside of a repository all files are copied. The copy is a repository, because some tests need a commit.
    """
    listed = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(listed, capture_output=True, text=True)
    names = listing.stdout.split("\0") if listing.returncode == 0 and listing.stdout else map(str, root.rglob("*"))
    for name in filter(None, names):
        source, target = root / name, place / (root / name).relative_to(root)
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    if (root.parent / "shared").is_dir() and not (place.parent / "shared").exists():
        (place.parent / "shared").symlink_to((root.parent / "shared").resolve())
    who = ("-c", "user.name=mutants", "-c", "user.email=mutants@localhost", "-c", "commit.gpgsign=false")
    for words in (("init", "--quiet"), ("add", "--all"), (*who, "commit", "--quiet", "--message", "A copy")):
        subprocess.run(["git", "-C", str(place), *words], check=True)
    return place


class Tree:
    """A copy of the checkout in which one process at a time runs tests."""

    def __init__(self, root: Path, home: Path, number: int):
        self.home = home / f"job{number}"
        self.root = copy_checkout(root, self.home / "checkout")
        self.process = None
        # bytecode is looked up by the text of a file: by its second and size, as is usual, an edit might go unnoticed
        by_text = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "."]
        subprocess.run([sys.executable, *by_text], cwd=self.root, check=True)

    def pytest(self, tests: Sequence[str], mark: str) -> tuple[int, str]:
        """The exit code of pytest and its output; -1 after TIMEOUT seconds."""
        shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)  # it remembers failures of the mutant before
        words = ["--maxfail=1", "-p", "no:cacheprovider", f"--basetemp={self.home / 'tmp'}"]
        command = [sys.executable, "-m", "pytest", *words, "-m", mark, *tests]
        compiled = {"JAX_COMPILATION_CACHE_DIR": str(self.home.parent / "compiled")}
        environment = {**compiled, **os.environ, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        self.process = subprocess.Popen(command, cwd=self.root, env=environment, start_new_session=True, **pipes)
        try:
            output, _ = self.process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            self.stop()
            return -1, ""
        return self.process.returncode, output

    def stop(self):
        """End the running tests with all processes that they have started."""
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def judge(self, mutant: Mutant, tier: str) -> dict:
        """Run one tier of a mutant's tests: {"killed": the test that failed or None, "seconds": its time}.

        Raises:
          Broken: the tests are not found.
        """
        file, began = self.root / mutant.file, time.monotonic()
        right = file.read_text(encoding="utf-8")
        file.write_text(apply_mutant(self.root, mutant), encoding="utf-8")
        try:
            code, output = self.pytest(list(dict.fromkeys([mutant.file, *mutant.tests])), MARKS[tier])
        finally:
            file.write_text(right, encoding="utf-8")
        seconds = round(time.monotonic() - began, 1)
        if code == 5 and tier == "slow":  # it has no slow tests
            return {"killed": None, "seconds": seconds}
        if code not in (-1, 0, 1, 2):
            raise Broken(f"{mutant.name}: pytest ended with code {code}\n{output[-3000:]}")
        if code <= 0:
            return {"killed": HANGS if code else None, "seconds": seconds}
        if not (listing := FAILED.findall(output)):
            raise Broken(f"{mutant.name}: no test says that it failed\n{output[-3000:]}")
        return {"killed": listing[0], "seconds": seconds}

    def failing(self, tests: Sequence[str]) -> list[str]:
        """Those of the tests that fail on the unchanged code."""
        code, output = self.pytest(["--maxfail=0", *tests], "slow or not slow") if tests else (0, "")
        if code not in (0, 1, 2):
            raise Broken(f"pytest ended with code {code} on the unchanged code\n{output[-3000:]}")
        return FAILED.findall(output)


class Results:
    """{name: {tier: {"killed", "seconds"}}}, kept in a file, with which an interrupted command continues."""

    def __init__(self, path: Path | None):
        self.path, self.lock, self.broken = path, threading.Lock(), []
        self.found = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}

    def of(self, mutant: Mutant) -> dict:
        return self.found.get(mutant.name, {})

    def refuse(self, error: Broken):
        with self.lock:
            self.broken.append(str(error))
            print(f"error: {error}", file=sys.stderr, flush=True)

    def write(self):
        if self.path:
            temporary = self.path.with_name(f"{self.path.name}.part")
            temporary.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
            temporary.replace(self.path)

    def add(self, mutant: Mutant, tier: str, result: dict):
        with self.lock:
            self.found.setdefault(mutant.name, {})[tier] = result
            self.write()
            message = f"killed by {result['killed']}" if result["killed"] else "survived"
            print(f"{mutant.name}: {message} ({tier}, {result['seconds']:.0f} s)", flush=True)


def try_mutant(mutant: Mutant, trees: SimpleQueue, tiers: Sequence[str], results: Results, stopped: threading.Event):
    """Run the tiers of one mutant that have no result yet, until one of them kills it."""
    for tier in tiers:
        known_names = results.of(mutant)
        if stopped.is_set() or any(result["killed"] for result in known_names.values()):
            return
        if tier in known_names:
            continue
        tree = trees.get()
        try:
            result = tree.judge(mutant, tier)
            if not stopped.is_set():
                results.add(mutant, tier, result)
        except Broken as error:
            if not stopped.is_set():
                results.refuse(error)
            return
        finally:
            trees.put(tree)


def check_kills(chosen: Sequence[Mutant], results: Results, tree: Tree):
    """Take back the kills by tests that fail on the unchanged code, too; a kill is checked once."""
    kills = [(mutant, tier, result) for mutant in chosen for tier, result in results.of(mutant).items()]
    kills = [kill for kill in kills if kill[2]["killed"] not in (None, HANGS) and not kill[2].get("checked")]
    failing = {*tree.failing(sorted({result["killed"] for _, _, result in kills}))}
    for mutant, tier, result in kills:
        result["checked"] = result["killed"] not in failing
        if not result["checked"]:
            del results.found[mutant.name][tier]
            results.refuse(Broken(f"{mutant.name}: {result['killed']} fails without the mutant, too"))
    results.write()


def run_all(chosen: Sequence[Mutant], tiers: Sequence[str], results: Results, jobs: int, root: Path = ROOT):
    """Try all mutants on `jobs` copies of the checkout."""
    home, stopped, queue = Path(tempfile.mkdtemp(prefix="mutants-")), threading.Event(), SimpleQueue()
    trees = []
    try:
        for number in range(jobs):
            trees.append(Tree(root, home, number))
            queue.put(trees[-1])
        with ThreadPoolExecutor(jobs) as pool:
            waiting = [pool.submit(try_mutant, mutant, queue, tiers, results, stopped) for mutant in chosen]
            try:
                for future in waiting:
                    future.result()
            except BaseException:
                stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
                for tree in trees:
                    tree.stop()
                raise
        check_kills(chosen, results, trees[0])
    finally:
        shutil.rmtree(home, ignore_errors=True)


def table(mutants: Mapping[str, Sequence[Mutant]], results: Results) -> str:
    """The scores of each package: how many of its mutants were tried, and killed by the default tier and by all."""
    lines = [f"{'package':14} {'mutants':>8} {'default tier':>13} {'all tests':>10}"]
    for package, its in (*mutants.items(), ("all", sum(mutants.values(), ()))):
        tried = [results.of(mutant) for mutant in its if results.of(mutant)]
        fast = sum(bool(tiers.get("default", {}).get("killed")) for tiers in tried)
        lines.append(f"{package:14} {len(tried):8} {fast:13} {sum(map(is_killed, tried)):10}")
    return "\n".join(lines)


def is_killed(tiers: Mapping[str, dict]) -> bool:
    """Whether a test of any tier that was run has failed."""
    return any(result["killed"] for result in tiers.values())


def main(
    words: Sequence[str] | None = None, mutants: Mapping[str, tuple[Mutant, ...]] = MUTANTS, root: Path = ROOT
) -> int:
    """Run the command; the exit code is 0, 1 if a mutant survives, or 2 if a mutant does not fit."""
    parser = argparse.ArgumentParser(description="Apply small wrong edits to the code, and run the tests.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants or packages (ops, models, ...); default: all")
    parser.add_argument("--tier", choices=("default", "slow", "all"), default="all", help="tests to run; default: all")
    parser.add_argument("--out", type=Path, help="JSON file of results; what it already has is not run again")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at the same time; default: 1")
    args = parser.parse_args(words)
    known_names = {*mutants, *(mutant.name for its in mutants.values() for mutant in its)}
    if unknown := {*args.names} - known_names:
        parser.error(f"there is no mutant or package {min(unknown)}")
    is_selected = lambda package, mutant: not args.names or {package, mutant.name} & {*args.names}
    chosen = {package: tuple(m for m in its if is_selected(package, m)) for package, its in mutants.items()}
    chosen, results = {package: its for package, its in chosen.items() if its}, Results(args.out)
    every = sum(chosen.values(), ())
    try:
        for mutant in every:
            apply_mutant(root, mutant)
            check_tests(root, mutant)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    tiers = ("default", "slow") if args.tier == "all" else (args.tier,)
    try:
        run_all(every, tiers, results, max(args.jobs, 1), root)
    except Broken as error:
        results.refuse(error)
    print(table(chosen, results))
    survivors = [mutant.name for mutant in every if results.of(mutant) and not is_killed(results.of(mutant))]
    print(f"survived: {', '.join(survivors)}" if survivors else "none survived")
    return 2 if results.broken else int(bool(survivors))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the tests end, too
    sys.exit(main())
