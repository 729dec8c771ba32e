"""Benchmarks say on what machine they ran, and show no ratio that other processes or the spread make meaningless."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks import _rounds
from benchmarks._rounds import Conditions, busy_cores, compare, matmul_flops, training, unreliable

QUIET = Conditions(0.0, 2e11)


class Counters:
    """/proc/stat of a machine on which others use one and a half cores."""

    ticks = iter((1000, 1000 + 15))

    def read_text(self):
        return f"cpu {next(self.ticks)} 0 0 777 5 0 0 0 0 0\ncpu0 ...\n"


def test_busy_cores_are_the_ticks_of_other_processes(monkeypatch, tmp_path):
    clock = iter((10.0, 10.1))
    monkeypatch.setattr(_rounds.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(_rounds.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(_rounds.os, "sysconf", lambda name: 100)  # ticks per second
    assert busy_cores(0.1, Counters()) == pytest.approx(1.5)
    monkeypatch.setattr(_rounds.os, "getloadavg", lambda: (0.7, 0, 0))
    monkeypatch.setattr(_rounds.time, "perf_counter", lambda: 0.0)
    assert busy_cores(0.1, tmp_path / "none") == 0.7


def test_flops_of_convolutions_branches_and_loops_by_hand():
    def count_flops(function, *shapes):
        return matmul_flops(jax.jit(function).trace(*(jnp.zeros(shape) for shape in shapes)).jaxpr.jaxpr)

    convolve = lambda x, w: jax.lax.conv_general_dilated(
        x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    assert count_flops(convolve, (2, 6, 6, 3), (3, 3, 3, 5)) == 2 * (2 * 4 * 4 * 5) * (3 * 3 * 3)
    branch = lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: x @ x @ x, lambda x: x @ x, x)
    assert count_flops(branch, (4, 4)) == 2 * 2 * 4**3
    again = lambda x: jax.lax.while_loop(lambda x: x[0, 0] < 9, lambda x: x @ x, x)
    assert np.isnan(count_flops(again, (4, 4)))
    assert count_flops(lambda x: jax.lax.while_loop(lambda x: x[0, 0] < 9, lambda x: x + 1, x), (4, 4)) == 0


def test_training_steps_count_forward_and_weight_gradient():
    loss = lambda params, batch, rng: (jnp.square(batch["x"] @ params["w"]).sum(), jnp.float32(1), {})
    data = {"x": jnp.ones((10, 7))}
    run = training(loss, optax.sgd(0.1), lambda rng: {"w": jnp.ones((7, 3))}, data, np.arange(5), steps=4)
    assert run.flops == 4 * 2 * (2 * 5 * 7 * 3)
    run()


@pytest.mark.parametrize(
    "start, end, times, number",
    [
        (Conditions(0.5, 2e11), QUIET, [1.0, 1.0, 1.0], "0.50 cores"),
        (QUIET, Conditions(0.0, 1.5e11), [1.0, 1.0, 1.0], "25 %"),
        (QUIET, QUIET, [1.0, 2.0, 3.0], "50 %"),
        (QUIET, QUIET, [1.0, 1.1, 1.1], ""),
    ],
)
def test_ratios_need_quiet_machine_or_anyway(start, end, times, number, monkeypatch, capsys):
    assert number in unreliable({"ours": times}, start, end)
    monkeypatch.setattr(_rounds, "alternate", lambda programs, rounds, calls: {"peer": [2.0] * 3, "ours": times})
    outputs = []
    for anyway in (False, True):
        states = iter((start, end))
        monkeypatch.setattr(_rounds, "conditions", lambda states=states: next(states))
        seconds = compare("a step", {"peer": print, "ours": print}, 10, "rows", steps=2, rounds=3, anyway=anyway)
        assert seconds["peer"] == [1.0] * 3
        outputs.append(capsys.readouterr().out)
    assert (
        ("1.00x" in outputs[0]) is (not number) and "1.00x" in outputs[1] and ("--anyway" in outputs[0]) is bool(number)
    )
    assert all("matmul 200 GFLOP/s" in text and "cores, jax" in text for text in outputs)
