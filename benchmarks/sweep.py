"""`python launch.py bench sweep`: 16 trials as one population against 16 `train` processes, one after another.

Trials over 4 learning rates and 4 seeds of date_luong with 64 hidden units and 2 epochs; start-up, data and compilation
included on both sides. A trained run also draws its figures; the sweep draws those of the sweep.
"""

import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._rounds import conditions, machine, unreliable

ROOT = Path(__file__).resolve().parents[1]
RATES = ("0.001", "0.002", "0.004", "0.008")
FIXED = ("--model.hidden-size", "64", "--train.total-epochs", "2")


def time_command(*arguments: str) -> float:
    """Seconds of one `launch.py` process."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, str(ROOT / "launch.py"), *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main(seeds: int = 4, anyway: bool = False) -> dict[str, float]:
    """Measure, print and return the seconds of both.

    Args:
        seeds: Runs per learning rate; 4 is the recorded comparison, 1 a quicker one.
        anyway: Print the ratio even where other processes make it meaningless.
    """
    count, start = len(RATES) * seeds, conditions()
    print(f"machine: {machine()}\nbefore: {start}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        warm = time_command(
            "train", "date_luong", *FIXED, "--train.max-steps", "1", "--out", f"{directory}/warm"
        )  # prepares the data for both
        print(f"preparing: {warm:.1f} s", flush=True)
        over = ("--over", f"optim.learning-rate={','.join(RATES)}", "--seeds", str(seeds))
        together = time_command("sweep", "date_luong", *FIXED, *over, "--out", f"{directory}/sweep")
        print(f"one sweep of {count} runs: {together:.1f} s", flush=True)
        alone = 0.0
        for place, (rate, seed) in enumerate(itertools.product(RATES, range(seeds))):
            numbers = ("--optim.learning-rate", rate, "--train.seed", str(seed))
            alone += time_command("train", "date_luong", *FIXED, *numbers, "--out", f"{directory}/{place}")
        print(f"{count} train processes: {alone:.1f} s")
    end = conditions()
    print(f"after: {end}")
    if (problem := unreliable({}, start, end)) and not anyway:
        print(f"{problem}: no ratio is shown; --anyway shows it")
    else:
        print(f"the population takes {together / alone:.2f} of the time (wanted: at most 0.5)")
    return {"population": together, "processes": alone}
