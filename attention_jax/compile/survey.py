"""Every experiment that trains, compiled for a target: `python -m attention_jax.compile.survey --target v5e`.

Each is compiled by a process of its own (`launch.py compile`): one that fails is a row that says why. The rows go to
experiments/results/compile_TARGET.json as they are done, and the tables of all targets to docs/devices.md.
"""

import datetime
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax

from attention_jax import catalogue, cli
from attention_jax.compile.programs import amount, size
from attention_jax.compile.targets import parse
from attention_jax.files import write_json, write_whole

HERE = catalogue.ROOT.parent
PAGE = HERE / "docs" / "devices.md"
MARKS = "<!-- compiled for absent chips: written by attention_jax.compile.survey -->", "<!-- until here -->"
BESIDES = {
    "transformer_wmt14": (["--variant", "big"],),
    "vit_i1k_s16": (["--facts", "train_images=8192"],),
}
"""More rows of an experiment."""


def main(target: str, experiment: tuple[str, ...] = (), timeout_seconds: float = 300.0):
    """Compile experiments for `target`, by default all that train, and write the tables.

    Args:
      target: v5e, h200, v5e:2x4, ...
      experiment: only these; the rows of others stay as they are.
      timeout_seconds: what takes longer is a row that says so.
    """
    parse(target)
    path = results(target)
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() and experiment else []
    for name in experiment or trained():
        rows = [row for row in rows if row["command"].split()[0] != name]
        for options in ([], *BESIDES.get(name, ())):
            rows.append(row_of([name, *options], target, timeout_seconds))
            print(line(rows[-1]), flush=True)
            found = {"target": target, "jax": jax.__version__, "date": str(datetime.date.today())}
            write_json(path, found | {"rows": sorted(rows, key=lambda row: row["command"])})
    write_whole(PAGE, with_tables(PAGE.read_text(encoding="utf-8")))


def trained() -> list[str]:
    """The names of the experiments that train."""
    return [name for name in catalogue.names() if not catalogue.load_experiment(name).study]


def results(target: str) -> Path:
    """Where the rows of a target are kept."""
    return catalogue.ROOT / "results" / f"compile_{target.replace(':', '_')}.json"


def row_of(words: list[str], target: str, timeout_seconds: float) -> dict:
    """The figures of `launch.py compile WORDS`, or why there are none."""
    row, started = {"command": " ".join(words)}, time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "found.json")
        command = [sys.executable, str(HERE / "launch.py"), "compile", *words, "--target", target, "--out", str(out)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            return row | {"failed": f"not compiled within {timeout_seconds:.0f} s"}
        row["seconds"] = round(time.perf_counter() - started)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()] or [f"ended with {done.returncode}"]
            return row | {"failed": said[-1].removeprefix("error: ")[:200]}
        programs = json.loads(out.read_text(encoding="utf-8"))["programs"]
    return row | {program["name"]: short(program) for program in programs}


def short(program: dict) -> dict:
    """What of a program a row keeps; all figures are of one device and one call."""
    kept = {name: program[name] for name in ("steps", "rows", "needs", "of", "fits")}
    if report := program["report"]:
        names = ("arguments", "temporaries", "products", "bytes_accessed", "least_seconds", "unknown", "told")
        kept |= {name: report[name] for name in names} | {"largest": report["largest"][:1]}
    return kept


def line(row: dict) -> str:
    """A row of the table."""
    cells = [f"`{row['command']}`"]
    if "failed" in row:
        return f"| {cells[0]} | {row['failed']} |" + " |" * 7
    training = row["training"]
    cells += [str(training["rows"]), memory(training)]
    if "least_seconds" in training:
        steps, report = training["steps"], training
        cells += [
            size(report["temporaries"]),
            f"{amount(sum(report['products'].values()) / steps)}FLOP",
            f"{amount(report['bytes_accessed'] / steps)}B",
            f"{1e3 * report['least_seconds'] / steps:.3g} ms",
        ]
    else:
        cells += ["", "", "", ""]
    cells += [memory(row[name]) if name in row else "" for name in ("evaluation", "decoding")]
    return f"| {' | '.join(cells)} |"


def memory(program: dict) -> str:
    """What a program needs, and whether that is there."""
    return size(program["needs"]) if program["fits"] else f"{size(program['needs'])}, does not fit"


def with_tables(page: str) -> str:
    """docs/devices.md with the tables of all targets there are between its marks."""
    before, _, rest = page.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    tables = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(results("*").parent.glob("compile_*.json"))
    ]
    return before + "\n\n".join([MARKS[0], *map(of_target, tables), MARKS[1]]) + after


def of_target(found: dict) -> str:
    """The table of one target."""
    chip = parse(found["target"]).chip
    head = f"**{found['target']}**: {size(chip.memory)}, {amount(chip.bf16)}FLOP/s in bfloat16, "
    head += f"{amount(chip.bandwidth)}B/s; jax {found['jax']}, {found['date']}:"
    columns = (
        "experiment", "rows a step", "training needs", "of it temporaries", "products a step", "traffic a step",
        "a step takes at least", "evaluation needs", "decoding needs",
    )  # fmt: skip
    titles = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    return "\n".join([head, "", *titles, *map(line, found["rows"])])


if __name__ == "__main__":
    cli.parse_call(main, sys.argv[1:], "survey")()
