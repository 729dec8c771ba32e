"""Wherever the package is traced, it is lowered for CPUs, GPUs and TPUs, and each gets a program of its own."""

import ast
import dataclasses
import functools
import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from tiny import MODELS, TRANSLATOR, builder, every_score

from attention_jax import config as configs
from attention_jax.models import stem, vit
from attention_jax.ops.attention import attend
from attention_jax.ops.losses import linear_cross_entropy
from attention_jax.train.optimizer import optimizer
from attention_jax.train.placement import Program
from attention_jax.train.step import init_state
from experiments.papers import options

PLATFORMS = ("cpu", "cuda", "tpu")
PACKAGE = Path(__file__).parents[1] / "attention_jax"
ASKING = {"default_backend", "devices", "local_devices", "get_backend", "backends"}
"""Of jax or one of its modules."""
MAY_ASK = {  # what a run was made on is written down; rows and copies go to every device
    "train/log.py:environment",
    "train/placement.py:put_streamed",
    "train/placement.py:replicate",
    "train/placement.py:mesh_of",
    "runs/header.py:devices",
    "runs/header.py:platform",
}


def slow(*values):
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def lower_everywhere(jitted, *inputs) -> dict[str, str]:
    """The program for each platform."""
    return {p: export.export(jitted, platforms=[p])(*inputs).mlir_module() for p in PLATFORMS}


def askers(source: str, place: str) -> set[str]:
    """The functions of a file that read which devices the machine has."""
    tree, inside = ast.parse(source), {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            inside |= {id(node): function.name for node in ast.walk(function)}

    def asks(node) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr in ASKING and ast.unparse(node.value).startswith("jax")
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        return bool(ASKING & set(names)) and node.module.startswith("jax")

    return {f"{place}:{inside.get(id(node), '')}" for node in ast.walk(tree) if asks(node)}


def test_no_function_reads_which_devices_the_machine_has():
    files = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    asking = {name for place, source in files.items() for name in askers(source, place)}
    assert asking == MAY_ASK
    assert askers("def f():\n    return jax.default_backend() == 'gpu'", "here.py") == {"here.py:f"}


# --- operations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["plain", *slow("fused")])
def test_every_score_is_lowered_for_every_platform(implementation):
    """In value and gradient, over heads, at a size where a CPU takes other blocks than a GPU and a TPU."""
    x, value = (jax.ShapeDtypeStruct((3, 300, width), jnp.float32) for width in (8, 5))

    def sum_outputs(x, value, scores):
        attend_with = lambda score: lambda x, v: attend(x, x, v, score=score, implementation=implementation)
        return sum(jax.vmap(attend_with(score))(x, value).sum() for score in scores)

    function = jax.jit(jax.value_and_grad(sum_outputs, argnums=(0, 1, 2)))
    texts = lower_everywhere(function, x, value, list(every_score().values()))
    in_blocks = {"cpu": implementation == "fused", "cuda": False, "tpu": False}
    assert {p: "300x256xf32" in text for p, text in texts.items()} == in_blocks


def test_under_pmap_too():
    x = jax.ShapeDtypeStruct((1, 300, 8), jnp.float32)
    mapped = jax.jit(jax.pmap(jax.grad(lambda x: attend(x, x, x).sum())))
    texts = {p: mapped.trace(x).lower(lowering_platforms=(p,)).as_text() for p in PLATFORMS}
    assert {p: "300x256xf32" in text for p, text in texts.items()} == {"cpu": True, "cuda": False, "tpu": False}


def test_one_program_for_all_platforms_runs_here():
    x = jax.random.normal(jax.random.key(0), (300, 8))
    gradient = lambda implementation: jax.jit(jax.grad(lambda x: attend(x, x, x, implementation=implementation).sum()))
    exported = export.export(gradient(None), platforms=PLATFORMS)(x)
    np.testing.assert_array_equal(exported.call(x), gradient("fused")(x))


def test_loss_chunks_follow_platform():
    rows = jax.ShapeDtypeStruct((600, 8), jnp.float32)
    loss = lambda hidden: linear_cross_entropy(hidden, jnp.ones((8, 16)), jnp.zeros(16), jnp.arange(600) % 16, mask)[0]
    mask = jnp.ones(600)
    for function in (loss, jax.grad(loss)):
        texts = lower_everywhere(jax.jit(function), rows)
        assert {p: "3x200x8xf32" in text for p, text in texts.items()} == {"cpu": True, "cuda": False, "tpu": False}
        assert {p: "1x600x8xf32" in text for p, text in texts.items()} == {"cpu": False, "cuda": True, "tpu": True}


@pytest.mark.parametrize(
    "dtype, precision", [("bfloat16", None), pytest.param("float32", "bfloat16", marks=pytest.mark.slow)]
)
def test_rows_are_one_axis_on_a_cpu_alone(dtype, precision):
    """A TPU would copy to join the patches of all images: 64 of each of 3 images, 192 rows."""
    options = configs.ViTConfig(1, 16, 40, 1, 2, pool="mean", dtype=dtype)
    model, images = vit.ViT(options, classes=5, image_size=8), jax.ShapeDtypeStruct((3, 8, 8, 1), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), images)
    with jax.default_matmul_precision(precision):
        texts = lower_everywhere(
            jax.jit(jax.grad(lambda params, images: model.apply(params, images)[0].sum())), params, images
        )
    assert {p: "tensor<192x" in text for p, text in texts.items()} == {"cpu": True, "cuda": False, "tpu": False}


# --- training and decoding --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return builder(tmp_path_factory.mktemp("data"))


def state_of(task, update):
    return jax.eval_shape(functools.partial(init_state, task.init, update, 0))


def test_every_model_is_here():
    """Every kind of options that names a module of its own and is trained from its options alone: not BERT."""
    classes = [c for module in (configs, options) for _, c in inspect.getmembers(module, inspect.isclass)]
    kinds = {c for c in classes if "module" in vars(c)}
    kinds = {c for c in kinds if dataclasses.is_dataclass(c) and issubclass(c, configs.ModelOptions)}
    assert {c for c in kinds if isinstance(vars(c)["module"], str)} - {
        configs.models.MaskedLanguageModelConfig,
        options.SparseAutoencoderConfig,  # of vectors, without attention
    } == {type(model) for model in MODELS}


TRANSFORMER = MODELS[10]
OTHERS = slow(*(model for model in MODELS if model is not TRANSFORMER))


@pytest.mark.parametrize("model", [TRANSFORMER, *OTHERS], ids=lambda model: type(model).__name__)
def test_every_training_step_is_lowered_for_every_platform(build, model):
    task = build(model)
    update = optimizer(task.config.optim, 10)
    bucket, indices, weight = task.plan(0, 1)[0]
    program = Program(task.loss, update, matmul_precision="bfloat16")
    exported = export.export(program.compiled, platforms=PLATFORMS)
    assert exported(state_of(task, update), task.buckets[bucket], indices, weight).platforms == PLATFORMS


def test_convolutions_are_products_on_a_cpu_alone():
    x, kernel = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32), jax.ShapeDtypeStruct((3, 3, 3, 4), jnp.float32)
    layer = stem.convolution(4, 3, 1, jnp.float32)
    run = jax.jit(jax.grad(lambda kernel, x: layer.apply({"params": {"kernel": kernel}}, x).sum()))
    texts = lower_everywhere(run, kernel, x)
    assert {p: "stablehlo.convolution" in t for p, t in texts.items()} == {"cpu": False, "cuda": True, "tpu": True}


DECODERS = [TRANSFORMER, *slow(configs.BahdanauConfig(**TRANSLATOR))]


@pytest.mark.parametrize("beams", [1, *slow(3)])
@pytest.mark.parametrize("model", DECODERS, ids=lambda model: type(model).__name__)
def test_decoding_is_lowered_for_every_platform(build, model, beams):
    task = build(model, **{"decode.beam_size": beams})
    params = state_of(task, optimizer(task.config.optim, 10)).params
    batch = {"source": jnp.ones((4, 5), jnp.int32), "source_length": jnp.full(4, 5, jnp.int32)}
    assert export.export(jax.jit(task.generate), platforms=PLATFORMS)(params, batch).platforms == PLATFORMS
