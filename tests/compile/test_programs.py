"""The programs of experiments, compiled for the CPU as if it were a chip; what is said where that cannot be."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from attention_jax import config as configs
from attention_jax.claims import catalog
from attention_jax.compile import command
from attention_jax.compile.compared import compare_normalizers, select_normalizers
from attention_jax.compile.programs import compile_program, largest_call, programs, size, table, to_json
from attention_jax.compile.report import DoesNotFit, compile_for, finish, report
from attention_jax.compile.targets import parse_target
from attention_jax.errors import InputError
from attention_jax.tasks import standin
from experiments.papers.options import ResNetConfig

ROOT = Path(__file__).resolve().parents[2]
CPU = parse_target("cpu")
TINY = {"data.examples": 600, "model.hidden_size": 8, "model.embed_size": 4, "train.steps_per_call": 3}


def tiny(name: str, **changes) -> tuple:
    """(task, configuration) of an experiment, made small."""
    experiment = catalog.load_experiment(name)
    config = configs.replace(experiment.config(), **changes)
    return standin.placeholder_task(config, command.find_data_sizes(experiment, config)), config


@pytest.fixture(scope="module")
def dates():
    """(the programs of date_luong, what became of each)."""
    task, config = tiny("date_luong", **TINY)
    lowered = list(programs(task, config, CPU))
    return lowered, [compile_program(program, CPU) for program in lowered]


def test_the_programs_are_those_of_a_run(dates):
    lowered, outcomes = dates
    assert [(program.name, program.steps, program.rows) for program in lowered] == [
        ("training", 3, 32), ("evaluation", 1, 60), ("decoding", 1, 60),
    ]  # fmt: skip
    assert all(outcome.fits and outcome.needs == outcome.report.total for outcome in outcomes)
    first = outcomes[0].report
    task, _ = tiny("date_luong", **TINY)
    parameters = sum(x.size * 4 for x in jax.tree.leaves(jax.eval_shape(task.init, jax.random.PRNGKey(0))))
    data, indices = sum(array.nbytes for array in task.buckets[0].values()), 2 * 3 * 32 * 4
    assert (
        first.arguments == 3 * parameters + data + indices + 3 * 4 + 8
    )  # Adam has two moments; three counters and a key
    assert first.aliased >= 3 * parameters


def test_figures_for_readers_and_for_programs(dates):
    _, outcomes = dates
    text = table(outcomes[0])
    assert "3 steps of 32 examples" in text and ": fits" in text and size(outcomes[0].needs) in text
    [first, *_] = json.loads(json.dumps(to_json("date_luong", CPU, outcomes), allow_nan=False))["programs"]
    assert first["needs"] == outcomes[0].needs and first["fits"] and first["of"] is None
    assert first["report"]["temporaries"] == outcomes[0].report.temporaries


def local_task(experiment: str, place: Path):
    """(task, configuration) of an experiment whose local data are streamed."""
    lines = [("ab"[n % 2], f"the text {n}" + " and more" * (n % 7)) for n in range(60)]
    columns = reversed if experiment == "translate_files" else tuple  # a source is a text
    (place / "a.tsv").write_text("".join("\t".join(columns(line)) + "\n" for line in lines), encoding="utf-8")
    sizes = {"model.hidden_size": 8, "model.num_heads": 2, "train.batch_size": 4}
    train_options = {"data.stream": "always", "train.max_steps": 8, "train.steps_per_call": 3}
    if experiment == "classify_images":
        for n in range(12):
            (place / "im" / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((16, 16, 3), 9 * n, np.uint8)).save(place / "im" / "ab"[n % 2] / f"{n}.png")
        return tiny(experiment, **sizes, **train_options, **{"data.path": str(place / "im"), "data.pixels": 16})
    file = "data.text_file" if experiment == "language_model" else "data.tsv_file"
    data_options = {"data.sequence_length": 16} if experiment == "language_model" else {"data.max_length": 9}
    if experiment == "translate_files":
        data_options |= {"data.tokenizer": "whitespace"}
    return tiny(experiment, **sizes, **train_options, **data_options, **{file: str(place / "a.tsv")})


@pytest.mark.parametrize("experiment", ["language_model", "classify_text", "translate_files", "classify_images"])
def test_largest_call_of_streamed_data_is_compiled(experiment, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "home"))
    task, config = local_task(experiment, tmp_path)
    with contextlib.closing(task.stream.read((0, 1, 1), 0, 0, 1)) as reading:
        calls = [call for _, call in reading]
    largest = max(calls, key=lambda call: sum(x.nbytes for x in call.bucket.values()))
    shape, arrays, unused_arrays = largest_call(task, config)
    assert shape == largest.weight.shape and not unused_arrays
    assert {name: (x.shape, x.dtype) for name, x in arrays.items()} == {
        name: (x.shape[1:], x.dtype) for name, x in largest.bucket.items()
    }
    if experiment == "language_model":
        lowered = list(programs(task, config, CPU))
        assert [(program.name, program.steps, program.beside) for program in lowered] == [
            ("training", 3, 0), ("evaluation", 1, 0),
        ]  # fmt: skip


def test_what_does_not_fit_says_what_it_needs(dates, monkeypatch):
    def refuse(lowered, target):
        raise DoesNotFit(20 * 2**30, 16 * 2**30, "")

    monkeypatch.setattr("attention_jax.compile.programs.finish", refuse)
    outcome = compile_program(dates[0][0], CPU)
    assert not outcome.fits and "20.0 GiB of 16.0 GiB: does not fit" in table(outcome)


def test_compiler_out_of_memory_reports_needed_bytes():
    class Refuses:
        def compile(self, compiler_options):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Used 20.5G of 15.75G hbm. Exceeded by 4.75G.")

    with pytest.raises(DoesNotFit, match=r"20.50 GiB of 15.75 GiB"):
        finish(Refuses(), CPU)


def test_memory_and_work_of_one_product():
    """[64, 32] by [32, 16]: both are arguments, and a multiplication and an addition are two operations."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 32), (32, 16))]
    analysis = report(compile_for(CPU, jnp.matmul, *shapes))
    assert analysis.arguments == 4 * (64 * 32 + 32 * 16) and analysis.output == 4 * 64 * 16 and not analysis.aliased
    assert analysis.flops == 2 * 64 * 32 * 16


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["vit_i1k_s16", "transformer_wmt14", "multi30k_deen_transformer", "cct_cifar10", "shakespeare"]
)
def test_missing_data_are_replaced_by_zeros(name, monkeypatch):
    """Sizes are those of the recorded run or of the file; no array of the data takes memory."""
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("nothing may be downloaded"))
    experiment = catalog.load_experiment(name)
    config = experiment.config()
    task = standin.placeholder_task(config, command.find_data_sizes(experiment, config))
    shapes = jax.eval_shape(task.init, jax.random.PRNGKey(0))
    parameters = sum(x.size for x in jax.tree.leaves(shapes))
    expected = {"vit_i1k_s16": 22_122_472, "transformer_wmt14": 63_082_496, "cct_cifar10": 284_490}
    assert parameters == expected.get(name, parameters)
    assert all(not any(array.strides) for bucket in task.buckets for array in bucket.values())
    assert set(task.eval_functions()) == {"evaluation"} | ({"decoding"} if config.decode else set())
    read = standin.read_call(config, task.buckets[0], (32, 1024))  # calls of 16 MiB at most, or of one step
    assert read == {"vit_i1k_s16": (1, 1024), "transformer_wmt14": (3, 1024)}.get(name)


@pytest.mark.slow
def test_each_normalizer_is_compared_with_the_softmax(capsys):
    """A sigmoid needs no more work than a softmax, a threshold more; a learned sink is a number of each head, with two
    moments in Adam."""
    experiment = catalog.load_experiment("vit_digits")
    config = configs.replace(experiment.config(), **{"model.num_layers": 1, "train.steps_per_call": 1})
    names = select_normalizers(["sigmoid(-4)", "sparsemax", "learned_sink"], config)
    outcomes = compare_normalizers(config, command.find_data_sizes(experiment, config), names, CPU)
    assert list(outcomes) == ["softmax", "sigmoid(-4)", "sparsemax", "learned_sink"]
    flops, arguments = ([get(outcome.report) for outcome in outcomes.values()] for get in (
        lambda report: report.flops, lambda report: report.arguments
    ))  # fmt: skip
    assert flops[1] < 1.01 * flops[0] and flops[2] > flops[0]
    assert arguments[1:3] == [arguments[0]] * 2 and arguments[3] == arguments[0] + 3 * 4 * config.model.num_heads
    output = capsys.readouterr().out
    for name, outcome in outcomes.items():
        assert re.search(rf"{re.escape(name)} +{re.escape(size(outcome.needs))} .*\d\.\d\d\)", output)
    with pytest.raises(InputError, match="--normalizers.*ResNet"):
        select_normalizers(["all"], configs.replace(config, model=ResNetConfig()))
    with pytest.raises(InputError, match="sparsemax.*sparsmax"):
        select_normalizers(["sparsmax"], config)


def test_a_size_that_nobody_knows_is_one_line():
    config = configs.Config("mine", configs.Images("folder", pixels=32), configs.ViTConfig())
    with pytest.raises(InputError, match=r"--data.path.*--facts train_images=NUMBER"):
        standin.placeholder_task(config, {})
    with pytest.raises(InputError, match="classes=1000"):
        command.parse_facts(["classes"])


@pytest.mark.parametrize(
    "words, message",
    [(["nadaraya_watson", "--target", "v5e"], "computation without training"),
     (["date_luong", "--target", "v5:2x4"], "perhaps you meant v5"),
     (["date_loung", "--target", "v5e"], "perhaps you meant date_luong"),
     (["date_luong", "--target", "cpu", "--train.batch-sise", "3"], "batch-size"),
     (["date_luong", "--target", "cpu", "--variant", "x"], "no variant 'x'"),
     (["date_luong"], "--target")],
)  # fmt: skip
def test_wrong_argument_is_one_line_error(words, message):
    from tests.test_launch import error_line

    assert message in error_line("compile", *words)


@pytest.mark.slow
def test_command_writes_printed_numbers_per_device(dates, tmp_path):
    """Each of four emulated devices holds the state and the data, and gets a quarter of the indices and the work."""
    out = tmp_path / "found.json"
    words = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "4", "NPROC": "8"}
    result = subprocess.run(
        [sys.executable, "launch.py", "compile", "date_luong", "--target", "cpu:4", *words, "--out", str(out)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    [four, *_] = json.loads(out.read_text())["programs"]
    single, indices = dates[1][0], 2 * 3 * 32 * 4  # of 3 steps, with a weight each
    assert four["rows"] == single.rows == 32 and size(four["report"]["temporaries"]) in result.stdout
    assert single.report.arguments - four["report"]["arguments"] == indices - indices // 4
    assert four["report"]["flops"] < 0.5 * single.report.flops
