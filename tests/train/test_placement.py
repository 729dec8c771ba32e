"""Micro-batches and sharded states: they compute what the whole batch on whole copies computes."""

import gc
import json
import os
import re
import shutil
import subprocess
import sys
import types
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import tasks
from attention_jax.config import Config, Images, Optim, Train, ViTConfig
from attention_jax.data.batches import plan
from attention_jax.errors import InputError
from attention_jax.runs import lifecycle
from attention_jax.tasks import Evaluation
from attention_jax.train import placement
from attention_jax.train.loop import check_batches, train_one
from attention_jax.train.optimizer import optimizer
from attention_jax.train.placement import Program
from attention_jax.train.step import gradient_sums, init_state
from tests.interruptions import interrupt_after

ROOT = Path(__file__).resolve().parents[2]
ROWS = 50
X = np.random.default_rng(0).normal(size=(ROWS, 8)).astype(np.float32)
TOKENS = np.random.default_rng(1).integers(0, 6, size=ROWS).astype(np.float32)
OPTIM = Optim(learning_rate=0.01, clip_norm=1.0)


def init(rng):
    first, second = jax.random.split(rng)
    return {"w": jax.random.normal(first, (8, 16)), "v": jax.random.normal(second, (16, 4)), "b": jnp.zeros(4)}


def loss(params, batch, rng, dropout=0.0):
    """A network of two layers on rows that count for 0 to 5 tokens."""
    x = batch["x"] * jax.random.bernoulli(rng, 1 - dropout, batch["x"].shape) if dropout else batch["x"]
    y = jnp.tanh(jnp.dot(x, params["w"])) @ params["v"] + params["b"][None]
    counted = batch["tokens"] * batch["weight"]
    return (((y - 1) ** 2).sum(1) * counted).sum(), counted.sum(), {"rows": (batch["weight"].sum(), jnp.float32(1))}


def network(dropout=0.0, batch_size=16):
    """What the loop needs of a task."""
    return types.SimpleNamespace(
        init=init,
        loss=lambda *args: loss(*args, dropout=dropout),
        buckets=({"x": X, "tokens": TOKENS},),
        plan=lambda epoch, steps: plan(0, epoch, [ROWS], [batch_size], 2),
        evaluate=lambda params, full: Evaluation({"valid.loss": 0.0}, {}),
        describe=dict,
    )


def train_network(directory, dropout=0.0, **options):
    """(losses of the steps, final parameters)."""
    directory.mkdir(exist_ok=True)
    train = Train(batch_size=16, total_epochs=3, **options)
    _, params = train_one(network(dropout), OPTIM, train, directory, quiet=True)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [line["train.loss"] for line in lines if "valid.loss" not in line], params


def same(first, second, **tolerance):
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.parametrize("accumulation_steps", [2, 3, 16])
def test_micro_batches_add_up_to_the_batch(accumulation_steps):
    """Also where they hold unequal numbers of tokens, and where their number does not divide the batch."""
    params, rng = init(jax.random.PRNGKey(0)), jax.random.PRNGKey(1)
    bucket, batch = {"x": X, "tokens": TOKENS}, (np.arange(16), np.arange(16, dtype=np.float32) % 3)
    sums = jax.jit(gradient_sums, static_argnums=(0, 1))
    whole, micro_batched = (sums(loss, n, params, bucket, batch, rng) for n in (1, accumulation_steps))
    same(micro_batched[0], whole[0], rtol=1e-5, atol=1e-4)
    same(micro_batched[1]["loss"], whole[1]["loss"], rtol=1e-6)
    assert micro_batched[1]["rows"] == (whole[1]["rows"][0], accumulation_steps)


def test_each_micro_batch_has_own_key():
    def draw_loss(params, batch, rng):
        at = jnp.arange(4) == batch["number"][0]
        return params.sum(), jnp.float32(1), {"drawn": (jnp.where(at, jax.random.uniform(rng), 0.0), jnp.float32(1))}

    bucket, batch = {"number": jnp.arange(4)}, (jnp.arange(4), jnp.ones(4))
    sums = jax.jit(gradient_sums, static_argnums=(0, 1))
    _, metrics = sums(draw_loss, 4, jnp.ones(2), bucket, batch, jax.random.PRNGKey(0))
    assert len(set(metrics["drawn"][0].tolist())) == 4


@pytest.mark.slow
def test_accumulation_equals_full_batches(tmp_path):
    whole, micro_batched = train_network(tmp_path / "whole"), train_network(tmp_path / "parts", accumulation_steps=4)
    same(micro_batched, whole, rtol=1e-5)


def lower_program(rows=16, streamed=False, **options):
    """The training call of all devices, not yet compiled."""
    task, update = network(), optimizer(OPTIM, 10)
    program = Program(task.loss, update, streamed=streamed, **options)
    state = program.put_state(jax.device_get(init_state(task.init, update, 0)))
    steps, n = np.zeros((2, rows), np.int32), jax.device_count()
    bucket = {name: np.zeros((steps.size, *x.shape[1:]), x.dtype) for name, x in task.buckets[0].items()}
    by_device = {name: x.reshape(n, -1, *x.shape[1:]) for name, x in bucket.items()}
    bucket = program.put_streamed(by_device) if streamed else program.put_data(bucket)
    batches = map(program.put_batches, (steps, steps.astype(np.float32)))
    return program.compiled.lower(state, bucket, *batches)


def test_micro_batches_need_less_memory():
    programs = [lower_program(4096, accumulation_steps=n).compile() for n in (1, 8)]
    temporaries = [program.memory_analysis().temp_size_in_bytes for program in programs]
    assert temporaries[1] < temporaries[0] / 3, temporaries


@pytest.mark.parametrize("steps, message", [(3, "multiple of 3, .* got 16: give 18"), (32, "got 16: give 32")])
def test_indivisible_batch_is_one_line_error(steps, message):
    with pytest.raises(InputError, match=message) as error:
        check_batches(network(), Train(batch_size=16, accumulation_steps=steps))
    assert "\n" not in str(error.value)


def test_batches_counted_in_tokens_are_filled():
    check_batches(network(batch_size=7), Train(batch_size=16, accumulation_steps=3))


def test_indivisible_batch_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "build", lambda config: network(batch_size=50))
    config = Config("vit_digits", Images(), ViTConfig(), train=Train(batch_size=50, accumulation_steps=4))
    with pytest.raises(InputError, match="give 52"):
        lifecycle.start(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_largest_axis_that_divides_is_divided():
    array = lambda *shape: np.zeros(shape, np.float32)
    large = placement.SHARDED_FROM // 4
    assert placement.partition_spec(array(large - 4), 4) == jax.P()
    assert placement.partition_spec(array(large), 4) == jax.P("data")
    assert placement.partition_spec(array(large).astype(np.float16), 4) == jax.P("data")  # as its parameter
    assert placement.partition_spec(array(4, large), 4) == jax.P(None, "data")
    assert placement.partition_spec(array(large, 4), 4) == jax.P("data")
    assert placement.partition_spec(array(6, large + 1), 2) == jax.P("data")  # the longer one does not divide
    assert placement.partition_spec(array(3, large + 1), 2) == jax.P()


def on(devices: int, name: str, *arguments):
    """Call a function of this file in a process with as many emulated devices."""
    script = f"import jax, runpy, sys; jax.config.update('jax_num_cpu_devices', {devices}); "
    script += "runpy.run_path(sys.argv[1])[sys.argv[2]](*sys.argv[3:])"
    environment = os.environ | {"NPROC": "8", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, __file__, name, *map(str, arguments)]
    subprocess.run(command, check=True, env=environment, timeout=300)


def pieces_equal_copies(directory: str):
    """In a process of several devices: a sharded training is the replicated one, dropout and micro-batches included."""
    placement.SHARDED_FROM = 100
    directory, options = Path(directory), {"dropout": 0.5, "accumulation_steps": 2}
    copies = train_network(directory / "copies", **options)
    pieces = train_network(directory / "pieces", shard_parameters=True, **options)
    same(pieces, copies, rtol=1e-6, atol=1e-6)


def memory_and_collectives():
    """In a process of several devices: a device holds its share, and no collective moves more than one array."""
    placement.SHARDED_FROM = 100
    devices = jax.device_count()
    copies, pieces = lower_program().compile(), lower_program(shard=True)
    assert pieces.as_text().count("stablehlo.all_gather") == 2, "w and v"
    pieces = pieces.compile()
    used = [program.memory_analysis().argument_size_in_bytes for program in (copies, pieces)]
    large = 3 * 4 * (8 * 16 + 16 * 4)  # bytes of w, v and their two moments
    assert used[0] - used[1] >= large * (1 - 1 / devices), used
    text = pieces.as_text()
    gathered = re.findall(r"f32\[([\d,]+)\]\S* all-gather\(", text)
    assert gathered and set(gathered) <= {"8,16", "16,4"}, gathered
    scattered = set(re.findall(r"f32\[([\d,]+)\]\S* reduce-scatter\(", text))
    assert scattered == {f"8,{16 // devices}", f"{16 // devices},4"}, scattered


def each_its_own_rows():
    """In a process of several devices: of data that are streamed, a device holds those it trains on."""
    for shard in (False, True):
        programs = [lower_program(shard=shard, streamed=streamed).compile() for streamed in (False, True)]
        all_rows, own_rows = [program.memory_analysis().argument_size_in_bytes for program in programs]
        assert all_rows - own_rows == 4 * 32 * (8 + 1) * (1 - 1 / jax.device_count()), (all_rows, own_rows)


def devices_4(directory: str):
    memory_and_collectives()
    each_its_own_rows()
    pieces_equal_copies(directory)


@pytest.mark.slow
def test_on_four_devices_pieces_equal_copies(tmp_path):
    on(4, "devices_4", tmp_path)


def goes_on(directory: str):
    """In a process of several devices: sharded, to the end, from where it is."""
    placement.SHARDED_FROM = 100
    _, params = train_network(Path(directory), shard_parameters=True)
    np.savez(f"{directory}.npz", **params)


def begins(whole: str, interrupted: str, copy: str):
    """In a process of several devices: sharded, once to the end and once to the first epoch, from which it goes on."""
    goes_on(whole)
    with interrupt_after(1):
        train_network(Path(interrupted), shard_parameters=True)
    shutil.copytree(interrupted, copy)
    goes_on(interrupted)


@pytest.mark.slow
def test_sharded_run_resumes_on_any_device_count(tmp_path):
    on(4, "begins", *(tmp_path / name for name in ("whole", "part", "copy")))
    on(2, "goes_on", tmp_path / "copy")
    whole, interrupted, copy = (np.load(tmp_path / f"{name}.npz") for name in ("whole", "part", "copy"))
    assert all((interrupted[name] == whole[name]).all() for name in whole)
    same(dict(copy), dict(whole), rtol=1e-5)


class Scaled:
    """A task as far as an evaluation is concerned."""

    def __init__(self, data):
        self.data = data

    def score_rows(self, params, batch):
        return params * batch["x"] + self.data.sum()


def test_a_long_evaluation_says_how_far_it_is(monkeypatch, capsys):
    """With no seconds between lines, one before each batch, on standard error; without a name for it none."""
    monkeypatch.setattr(placement.printing, "LINE_SECONDS", 0)
    task, rows = Scaled(np.ones(3, np.float32)), {"x": np.arange(2500, dtype=np.float32)}
    placement.map_batches(task.score_rows, jnp.float32(2), rows, 1000)
    placement.map_batches(task.score_rows, jnp.float32(2), rows, 1000, progress="decoding test")
    expected = [f"decoding test: {count} of 2,500" for count in ("0", "1,000", "2,000")]
    assert capsys.readouterr() == ("", "\n".join(expected) + "\n")


def test_compiled_evaluation_does_not_keep_task_alive():
    task = Scaled(np.ones(3, np.float32))
    function = lambda params, batch: params * batch["x"]
    references = [weakref.ref(obj) for obj in (task, function)]
    for _ in range(2):
        rows = {"x": np.arange(5, dtype=np.float32)}
        assert (placement.map_batches(task.score_rows, jnp.float32(2), rows, 2) == 2 * rows["x"] + 3).all()
        assert (placement.map_batches(function, jnp.float32(2), rows, 2) == 2 * rows["x"]).all()
    del task, function
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def devices_of_a_mesh(directory: str):
    """pmap, jit, and jit over a mesh of one's own with another axis: the same bits, with dropout, streamed or not."""
    directory, ends = Path(directory), {}
    for parallel in ("pmap", "jit"):
        ends[parallel] = train_network(directory / parallel, dropout=0.3, parallel=parallel, accumulation_steps=2)
    np.testing.assert_array_equal(ends["pmap"][0], ends["jit"][0])
    jax.tree.map(np.testing.assert_array_equal, ends["pmap"][1], ends["jit"][1])

    n, update = jax.device_count(), optimizer(OPTIM, 10)
    rows = {"x": X[:32].reshape(n, -1, 8), "tokens": TOKENS[:32].reshape(n, -1)}  # of 2 steps of 16
    indices = np.tile(np.arange(32 // n, dtype=np.int32).reshape(2, -1), (1, n))
    streamed = []
    for parallel in ("pmap", "jit"):
        program = Program(loss, update, streamed=True, parallel=parallel)
        state = program.put_state(jax.tree.map(np.asarray, init_state(init, update, 0)))
        state, _ = program.train_steps(state, program.put_streamed(rows), indices, np.ones((2, 16), np.float32))
        streamed.append(program.fetch(state).params)
    jax.tree.map(np.testing.assert_array_equal, *streamed)

    half = jax.device_count() // 2 or 1
    mesh = jax.make_mesh((half, jax.device_count() // half), ("data", "model"))
    rows = np.arange(32, dtype=np.int32).reshape(2, 16)
    params_by_placement = []
    for across in (mesh, jax.sharding.Mesh(np.array(jax.devices()[:half]), ("data",))):
        program = Program(loss, update, mesh=across)
        start = jax.tree.map(np.asarray, init_state(init, update, 0))
        state, buckets = program.put_state(start), program.put_data(({"x": X, "tokens": TOKENS},))
        state, _ = program.train_steps(state, buckets[0], rows, np.ones(rows.shape, np.float32))
        params_by_placement.append(program.fetch(state).params)
    jax.tree.map(np.testing.assert_array_equal, *params_by_placement)


def test_custom_mesh_needs_data_axis():
    with pytest.raises(InputError, match="needs an axis 'data'"):
        Program(loss, optimizer(OPTIM, 10), mesh=jax.make_mesh((1,), ("batch",)))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_pmap_and_jit_have_the_same_bits(devices, tmp_path):
    """A subprocess each, with emulated devices."""
    on(devices, "devices_of_a_mesh", tmp_path)
