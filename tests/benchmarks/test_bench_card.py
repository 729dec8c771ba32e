"""`launch.py bench card` on a CPU: failures are rows, what is measured stays, and every case is what its name says."""

import functools
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.errors import InputError
from attention_jax.files import read_json, write_json
from attention_jax.models.transformer import count_parameters
from attention_jax.ops import dispatch
from benchmarks import _card_programs as programs, card
from benchmarks._attention_cases import CAP, CASES, SIGMA, jax_function, torch_function
from benchmarks._process import run_in_process
from benchmarks.card import Measurement

RATES = functools.partial(dict, bfloat16_flops=2e12, float32_flops=1e12, copy_bytes=3e9)
TIMES = functools.partial(dict, step_seconds=[2.0])


@pytest.fixture
def run_measurements(monkeypatch, tmp_path):
    """`run_measurements(measurements, **options)` runs the command with these measurements in place of its own."""

    def run(measurements, **options):
        monkeypatch.setattr(
            card, "measurements", lambda platform: [Measurement(*measurement) for measurement in measurements]
        )
        return card.main(out=str(tmp_path / "card.json"), **options)["rows"]

    return run


def test_failures_become_rows_with_reasons(run_measurements, capsys, tmp_path):
    hang, error = functools.partial(time.sleep, 60), functools.partial(exec, "raise ValueError('no such kernel')")
    rows = run_measurements(
        [("tests", os.abort, 30), ("launch", hang, 0.5), ("train/a/b", error, 30), ("rates", RATES, 30)]
    )
    assert rows["tests"]["problem"] == "the process was killed by SIGABRT"
    assert rows["launch"]["problem"] == "not done within 0.5 s" and "step_seconds" not in rows["launch"]
    assert rows["train/a/b"]["problem"] == "ValueError: no such kernel"
    assert rows["rates"]["problem"] == "" and rows["rates"]["copy_bytes"] == 3e9
    assert read_json(tmp_path / "card.json")["rows"] == rows
    printed = capsys.readouterr().out
    assert "| a | b | ValueError: no such kernel |  |  |  |" in printed
    assert "| matrix products and copies | 2 TFLOP/s in bfloat16, 1 in float32; 3 GB/s |" in printed


def test_second_call_measures_missing_rows(run_measurements):
    first = run_measurements([("launch", TIMES, 30), ("tests", os.abort, 30)])
    now = [("launch", os.abort, 30), ("tests", functools.partial(dict, counts={"passed": 3}, finished=True), 30)]
    assert run_measurements([*now, ("rates", RATES, 30)]) == first | {"rates": run_measurements(now[:0])["rates"]}
    rows = run_measurements(now, retry=True)
    assert rows["launch"] == first["launch"] and rows["tests"]["counts"] == {"passed": 3}


def test_measurement_cut_by_time_limit_is_pending(run_measurements, monkeypatch, capsys):
    clock, limits = [0.0], []

    def run(function, limit):
        clock[0] += min(limit, 300.0)
        limits.append(limit)
        return TIMES() | {"problem": "" if limit > 300 else "not done"}

    monkeypatch.setattr(card, "run_in_process", run)
    monkeypatch.setattr(card, "time", SimpleNamespace(monotonic=lambda: clock[0], strftime=time.strftime))
    rows = run_measurements(
        [(name, None, 400.0) for name in ("launch", "decode/1/a", "decode/1/b")], total_seconds=540.0
    )
    assert set(rows) == {"launch"} and limits == [400.0, 240.0]
    assert "2 measurements are left, the same command continues" in capsys.readouterr().out


def test_child_processes_end_with_measurement():
    row = run_in_process(functools.partial(eval, "{'pid': __import__('subprocess').Popen(['sleep', '60']).pid}"), 30)
    status, end = Path(f"/proc/{row['pid']}/stat"), time.monotonic() + 10
    is_running = lambda: status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
    while is_running() and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running()


@pytest.mark.slow
def test_cpu_run_writes_table_into_page(tmp_path):
    """With everything real; the same call again measures nothing, and leaves the page as it is."""
    out, page = str(tmp_path / "new" / "card.json"), tmp_path / "page.md"
    page.write_text(f"before\n\n{card.START}old\n{card.END}\n\nafter\n")
    call = functools.partial(card.main, only=("attention/alibi/32x8/default",), out=out, page=str(page))
    [(name, row)] = call()["rows"].items()
    assert name == "attention/alibi/32x8/default" and row["problem"] == "" and row["temporary_bytes"] > 0
    assert len(row["forward_seconds"]) >= 3 and min(row["forward_seconds"] + row["gradient_seconds"]) > 0
    text = page.read_text()
    assert text.startswith(f"before\n\n{card.START}device cpu, jax") and text.endswith(f"|\n{card.END}\n\nafter\n")
    assert "| alibi 32x8 | default |" in text and "numbers say nothing about the speed" in text.replace("\n", " ")
    assert call()["rows"] == {name: row} and page.read_text() == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ("rates", "atention")}, "--only atention selects nothing here: rates, kernel, tests, attention"),
        ({"total_seconds": 0.0}, "--total-seconds must be above 0, got 0"),
        ({"total_seconds": float("nan")}, "--total-seconds must be above 0, got nan"),
        ({"page": "README.md"}, "--page needs a file with <!-- bench card -->"),
        ({"page": "missing.md"}, "--page needs a file with <!-- bench card -->"),
    ],
)
def test_bad_option_is_rejected_before_measuring(options, message, tmp_path, monkeypatch):
    monkeypatch.setattr(card, "run_in_process", None)
    with pytest.raises(InputError, match=message) as error:
        card.main(out=str(tmp_path / "card.json"), **options)
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_results_of_different_cards_are_not_mixed(run_measurements, tmp_path):
    path = tmp_path / "card.json"
    for content, message in (
        ({"facts": card.facts() | {"device": "H100"}, "rows": {}}, "has results for device H100, this is cpu"),
        (
            {"facts": card.facts() | {"torch": None, "driver": "1"}, "rows": {}},
            "has results for driver 1, this is None",
        ),
        ({"rows": {}}, "was not written by `bench card`"),
        ({"facts": card.facts(), "rows": {"rates": 3}}, "was not written by `bench card`"),
        ([], "holds no object"),
    ):
        write_json(path, content)
        with pytest.raises(InputError, match=message):
            run_measurements([("rates", RATES, 30)])
        assert read_json(path) == content


def test_implementations_are_those_of_dispatch(monkeypatch):
    assert card.implementations("gpu") == ["fused", "kernel", "cudnn", "linear"]
    assert card.implementations("tpu") == ["fused", "flash", "linear"]
    assert card.implementations("cpu") == ["fused", "linear"]
    monkeypatch.setattr(dispatch, "Implementation", Literal["plain", "fused", "cudnn", "third"])
    assert card.implementations("gpu") == ["fused", "cudnn", "third"]


def test_gpu_measures_default_first_at_both_lengths():
    names = [measurement.name for measurement in card.measurements("gpu")]
    checks = [name for name in names if name.startswith("kernel/")]
    assert len(checks) == 12 and "kernel/bias/1023" in checks and len(names) == len(set(names))
    assert names[:15] == ["rates", *checks, "tests", "attention/causal/2048x64/default"]
    defaults = [f"attention/{case}/{length}x64/default" for length in (2048, 8192) for case in card.FULL.cases]
    assert [name for name in names if name.endswith("default")] == defaults
    cudnn = [f"attention/causal/2048x{width}/cudnn" for width in (64, 72, 128)]
    model_routes = [
        "train/gpt2/attention_jax",
        "train/vit/attention_jax",
        "decode/1/attention_jax",
        "decode/16/attention_jax",
    ]
    assert {*cudnn, *model_routes, "launch", "attention/window/8192x64/jax.nn cudnn"} <= {*names}
    assert names.index("launch") < names.index("attention/causal/8192x64/default")


def test_unsupported_implementation_is_left_out():
    of = {measurement.name: measurement for measurement in card.measurements("gpu")}
    assert of["attention/causal/2048x64/fused"].applies() and not of["attention/l1/2048x64/cudnn"].applies()


@pytest.mark.slow
def test_everything_runs_at_tiny_sizes(tmp_path):
    rows = card.main(out=str(tmp_path / "card.json"))["rows"]
    assert {name: row["problem"] for name, row in rows.items() if row["problem"]} == {}
    expected = {
        "rates",
        "tests",
        "launch",
        "train/gpt2/attention_jax",
        "train/vit/attention_jax",
        "decode/1/attention_jax",
    }
    assert expected <= {*rows} and "attention/causal/32x8/jax.nn" in rows


@pytest.mark.slow
def test_models_have_the_published_numbers_of_parameters():
    """GPT-2 124M, ViT-S/16 and SmolLM2-135M as transformers has them, by `num_parameters()`."""
    sizes = card.FULL._replace(tokens=(1, 1024), images=(1, 224))
    inits = [getattr(programs, model)(card.FULL, programs.draw(sizes, model))[1] for model in ("gpt2", "vit")]
    inits.append(lambda rng: programs.llama(card.FULL).init(rng, jnp.ones((1, 2), jnp.int32)))
    counts = [count_parameters(jax.eval_shape(init, jax.random.key(0))) for init in inits]
    assert counts == [124_439_808, 22_050_664, 134_515_008]


def sparsemax(x):
    """By sorting, Martins & Astudillo 2016, algorithm 1: x [K]."""
    z = np.sort(x)[::-1]
    sums, k = np.cumsum(z), np.arange(1, len(z) + 1)
    support = k[1 + k * z > sums][-1]
    return np.maximum(x - (sums[support - 1] - 1) / support, 0.0)


def softmax(x):
    weights = np.exp(x - x.max())
    return weights / weights.sum()


DEFINITIONS = {
    "causal": lambda d, q, k, i, j, slope: q @ k / d**0.5,
    "window": lambda d, q, k, i, j, slope: q @ k / d**0.5 if i - j <= 256 else -np.inf,
    "gaussian": lambda d, q, k, i, j, slope: -((q - k) ** 2).sum() / (2 * SIGMA**2),
    "alibi": lambda d, q, k, i, j, slope: q @ k / d**0.5 - slope * abs(i - j),
    "soft_cap": lambda d, q, k, i, j, slope: CAP * np.tanh(q @ k / d**0.5 / CAP),
    "sparsemax": lambda d, q, k, i, j, slope: q @ k / d**0.5,
    "l1": lambda d, q, k, i, j, slope: -np.abs(q - k).sum(),
}


@pytest.mark.parametrize("case", DEFINITIONS)
def test_every_case_is_its_definition(case):
    """In float64, for the first and the last query."""
    tokens, scale = (260, 1) if case == "window" else (20, 3)  # where the window, and the cap, make a difference
    query, key, value = (
        np.random.default_rng(0).standard_normal((3, 1, 2, tokens, 4)).astype(np.float32) * scale
    )  # [B,H,T,D]
    out = jax.jit(jax_function(CASES[case], "default", jnp.float32))(query, key, value)
    for head, slope in enumerate((1 / 16, 1 / 256)):
        q, k, v = (x[0, head].astype(np.float64) for x in (query, key, value))
        scores = np.array([DEFINITIONS[case](4, q[-1], k[j], tokens - 1, j, slope) for j in range(tokens)])
        weights = (sparsemax if case == "sparsemax" else softmax)(scores)
        np.testing.assert_allclose(out[0, head, -1], weights @ v, atol=2e-5)
        if CASES[case].mask is not None:
            np.testing.assert_allclose(out[0, head, 0], v[0], atol=1e-6)  # the first query attends to the first key
    if "jax.nn" in CASES[case].competitors:
        swapped = jax_function(CASES[case], "jax.nn", jnp.float32)(*(x.swapaxes(1, 2) for x in (query, key, value)))
        np.testing.assert_allclose(out, swapped.swapaxes(1, 2), atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("competitor", ["torch_sdpa", "torch_flex"])
def test_pytorch_computes_the_same_cases(competitor):
    torch = pytest.importorskip("torch", reason="the comparison needs torch==2.13.0, an extra")
    arrays = np.random.default_rng(0).standard_normal((3, 1, 2, 384, 16)).astype(np.float32) * 2
    for name in (name for name in DEFINITIONS if competitor in CASES[name].competitors):
        torch._dynamo.reset()
        tensors = [torch.from_numpy(x) for x in arrays]
        with torch.no_grad():
            out = torch_function(name, competitor, tensors[0])(*tensors)
        expected = jax_function(CASES[name], "default", jnp.float32)(*arrays)
        np.testing.assert_allclose(out.numpy(), expected, atol=2e-5, err_msg=name)
