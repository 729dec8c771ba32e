"""Mutation testing by cosmic-ray: which small wrong edits of a package do its default tests not see?

`python .ci/mutants.py ops --sample 40` draws 40 edits of attention_jax/ops, the same ones for the same code and seed,
applies each to a copy of the last commit, runs the package's tests until one fails, and prints the survivors. A
survivor is a hole in the tests, or an edit that changes nothing. Needs `pip install cosmic-ray`.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkerOutcome, WorkResult

CONFIG = """
[cosmic-ray]
module-path = "attention_jax/{package}"
timeout = {timeout}
excluded-modules = []
test-command = "{python} -m pytest -n 0 -x -q -p no:cacheprovider -m 'not slow' {tests}"
[cosmic-ray.distributor]
name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = [
    "core/ReplaceBinaryOperator_BitOr_.*",  # most are types, `int | None`
    "core/Variable.*",
    "core/ExceptionReplacer",
]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", help="a folder of attention_jax: ops, models, interpret, train")
    parser.add_argument("--tests", help="what to run instead of tests/PACKAGE")
    parser.add_argument("--sample", type=int, default=40, help="number of edits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for the tests of an edit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        checkout = Path(directory) / "checkout"
        subprocess.run(["git", "clone", "-q", ".", checkout], check=True)
        tests = options.tests or f"tests/{options.package}"
        config = CONFIG.format(package=options.package, tests=tests, timeout=options.timeout, python=sys.executable)
        (checkout / "cosmic.toml").write_text(config)
        run = lambda *command: subprocess.run(command, cwd=checkout, check=True)
        run("cosmic-ray", "baseline", "cosmic.toml")  # ends here if the tests fail without an edit
        run("cosmic-ray", "init", "cosmic.toml", "session.sqlite")
        run("cr-filter-operators", "session.sqlite", "cosmic.toml")
        with use_db(str(checkout / "session.sqlite"), WorkDB.Mode.open) as session:
            draw_sample(session, options.sample, options.seed)
        run("cosmic-ray", "exec", "cosmic.toml", "session.sqlite")
        with use_db(str(checkout / "session.sqlite"), WorkDB.Mode.open) as session:
            print_survivors(session)


def draw_sample(session: WorkDB, size: int, seed: int) -> None:
    """Skip all edits but `size` of those that the filter has left."""
    pending = sorted(session.pending_work_items, key=lambda item: str(item.mutations))
    chosen = {item.job_id for item in random.Random(seed).sample(pending, min(size, len(pending)))}
    skipped = [item.job_id for item in pending if item.job_id not in chosen]
    session.set_multiple_results(skipped, WorkResult(WorkerOutcome.SKIPPED))


def print_survivors(session: WorkDB) -> None:
    results = [result for _, result in session.results if result.worker_outcome != WorkerOutcome.SKIPPED]
    survivors = [result for result in results if not result.is_killed]
    for result in survivors:
        print(result.diff)
    print(f"{len(results) - len(survivors)} of {len(results)} edits failed a test")


if __name__ == "__main__":
    main()
