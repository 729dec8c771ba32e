"""Training steps in bfloat16 at odd lengths, whose gradient JAX's wrapper of cuDNN refuses.

The default tests trace and lower them for a CPU with a cuDNN that is believed to be there; the slow ones compile them
for an H100 where `jax[cuda12]` is installed.
"""

import importlib.util

import jax
import pytest
from tiers import slow_but

from attention_jax import config as configs
from attention_jax.compile.programs import compile_program, training
from attention_jax.compile.targets import parse_target
from attention_jax.tasks import standin
from experiments.papers.options import CCTConfig

DIMENSIONS = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "mlp_dim": 16}
HALF = {"model.dtype": "bfloat16", "model.dropout": 0.0, "model.attention_dropout": 0.0}
HALF |= {"train.batch_size": 2, "train.steps_per_call": 1}
WINDOWS = configs.TimeMachine(sequence_length=1023, train_windows=4, valid_windows=2)
IMAGES, IMAGE_FACTS = configs.Images("folder", pixels=14), {"train_images": 4, "test_images": 2, "classes": 3}
PAIR_FACTS = {
    "source_vocabulary": 9,
    "target_vocabulary": 9,
    "buckets": [{"pairs": 4, "source": 63, "target": 65}],
    "valid_pairs": 2,
}
FAMILIES = {
    "language model, 1,023 tokens": (WINDOWS, configs.LanguageModelConfig(**DIMENSIONS), {}),
    "grouped heads, window": (
        WINDOWS,
        configs.LanguageModelConfig(**DIMENSIONS, num_kv_heads=1, mask="window(64)"),
        {},
    ),
    "Vision Transformer, 197 tokens": (IMAGES, configs.ViTConfig(**DIMENSIONS, patch_size=1), IMAGE_FACTS),
    "compact convolutional Transformer, 49 tokens": (IMAGES, CCTConfig(**DIMENSIONS), IMAGE_FACTS),
    "Transformer, 63 and 65 tokens": (
        configs.Corpus(examples=0),
        configs.TransformerConfig(1, 1, hidden_size=16, num_heads=2, mlp_dim=16),
        PAIR_FACTS,
    ),
    "text classifier, 63 tokens": (
        configs.LabeledFile(examples=60, held_out_fraction=0.2),
        configs.TextClassifierConfig(**DIMENSIONS),
        {},
    ),
}
"""(data, model, sizes of the data) of every family that computes in half precision and attends."""


@pytest.fixture
def lower_step(with_attributes):
    """`lower_step(family, target)`: the training step of a family."""

    def lower(family, target):
        data, model, facts = FAMILIES[family]
        config = configs.replace(configs.Config("half", data, model), **HALF)
        if isinstance(data, configs.Corpus):
            config = configs.replace(config, decode=configs.Decode())
        task = standin.placeholder_task(config, facts)
        if isinstance(data, configs.LabeledFile):  # of three words
            lengthen = lambda arrays: arrays | {"tokens": standin.zeros(len(arrays["tokens"]), 63)}
            task = with_attributes(task, buckets=[lengthen(arrays) for arrays in task.buckets])
        return training(task, config, target)

    return lower


FIRST = ("language model, 1,023 tokens", "Vision Transformer, 197 tokens", "Transformer, 63 and 65 tokens")


@pytest.mark.parametrize("family", slow_but(FIRST, FAMILIES))
def test_half_precision_step_lowers_with_cudnn(family, lower_step, cudnn_installed):
    """Costs 2 s each."""
    assert "bf16" in lower_step(family, parse_target("cpu")).lowered.as_text()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_step_compiles_for_an_h100(family, lower_step):
    if not importlib.util.find_spec("jax_cuda12_plugin"):
        pytest.skip("needs jax[cuda12], which compiles for a GPU without one")
    target = parse_target("h100")
    program = lower_step(family, target)
    assert "__cudnn$fmhaSoftmaxBackward" in program.lowered.as_text()
    outcome = compile_program(program, target)
    assert outcome.fits and outcome.report.total > 0 and jax.default_backend() == "cpu"
