"""`launch.py bench attention`: each implementation in its own process, alternating rounds, ratios of medians."""

import json
import time

import pytest

from benchmarks import _attention_cell, attention
from benchmarks._attention_cell import Cell, measure_in_process

CELL = Cell("causal", "fused", (1, 2, 32, 8), "float32")
SECONDS = {"fused": [4.0, 1.0, 2.0], "plain": [8.0, 8.0, 8.0], "jax.nn": [1.0]}


def test_rounds_alternate_and_ratios_are_of_medians(tmp_path, monkeypatch):
    """Two rounds: the calls of both count, and the ratio is that of the medians of all of them."""
    order = []

    def fake(cell):
        order.append(cell.implementation)
        if cell.implementation == "jax.nn":
            return {"problem": "out of memory"}
        seconds = SECONDS[cell.implementation]
        return {"forward_seconds": seconds, "gradient_seconds": seconds, "temporary_bytes": 2**20, "problem": ""}

    monkeypatch.setattr(attention, "measure_in_process", fake)
    monkeypatch.setattr(attention, "conditions", lambda: "")
    rows = attention.main("cpu", ("causal",), 64, 64, rounds=2, torch=False, output=str(tmp_path))
    assert order == ["fused", "plain", "jax.nn", "fused", "plain"]  # a problem is not tried twice
    fused, plain, jax_nn = rows
    assert (fused["gradient_fastest_seconds"], fused["gradient_seconds"], fused["ratio"]) == (1.0, 2.0, 4.0)
    assert plain["ratio"] == 1.0 and (jax_nn["ratio"], jax_nn["problem"]) == (None, "out of memory")
    assert json.loads((tmp_path / "attention.json").read_text()) == rows


@pytest.mark.slow
def test_a_process_measures_one_cell():
    row = measure_in_process(CELL)
    assert row["problem"] == "" and min(row["forward_seconds"] + row["gradient_seconds"]) > 0
    assert measure_in_process(CELL._replace(implementation="best"))["problem"].startswith(
        "InputError: implementation must be one"
    )


def test_a_round_of_short_calls_waits_once():
    """A call of at least 1 ms: about ten of them are a round, the first two rounds are the warm-up."""
    calls, waits = [], []
    times = _attention_cell.seconds(lambda: time.sleep(1e-3) or calls.append(0), waits.append)
    assert 3 <= len(times) <= 20 and len(waits) == len(times) + 2
    assert min(times) >= 1e-3 and 2 + 2 * len(times) <= len(calls) <= 2 + 10 * len(times)
