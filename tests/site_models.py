"""One small model of each family, its parameters, and two inputs of one shape."""

import contextlib
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import their_decoders

from attention_jax import config as configs, load_pretrained, models
from attention_jax.models.layer_stack import stack_layers
from attention_jax.models.text_classifier import TextClassifier

SMALL = {"hidden_size": 8, "num_heads": 2, "mlp_dim": 12}
LLAMA = {"norm_layer": "rms", "mlp_layer": "swiglu", "num_kv_heads": 1, "position_embedding": "rotary"}
LLAMA |= {"use_bias": False, "output_bias": False, "scale_embeddings": False}
TOKENS = jnp.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 1]])
LENGTH = jnp.array([5, 3])


FAMILIES = ("scanned", "llama", "gpt", "gemma", "pretrained", "transformer", "vit", "text", "bert")
"""The pretrained one is scanned and rematerialized."""
BOTH = [(name, dtype) for name in FAMILIES for dtype in ("float32", "float64")]
EVERY = [BOTH[0], *(pytest.param(*both, marks=pytest.mark.slow) for both in BOTH[1:])]
"""Every family in both precisions, of which the first is tested by default."""


@contextlib.contextmanager
def precision(dtype: str):
    """Where arrays may have this dtype; positions, which are integers of 32 or 64 bits then, with promotion."""
    wide = dtype == "float64"
    with jax.enable_x64(wide), jax.numpy_dtype_promotion("standard" if wide else "strict"):
        yield


def language_model(dtype="float32", **options):
    """A decoder as Llama's."""
    return models.LanguageModel(
        with_dtype(configs.LanguageModelConfig(**{"num_layers": 2} | SMALL | LLAMA | options), dtype), 11
    )


def with_dtype(options, dtype: str):
    """The options with any dtype: float64 is for tests only."""
    object.__setattr__(options, "dtype", dtype)
    return options


@lru_cache
def family(name: str, dtype: str = "float32"):
    """(model, parameters, inputs, other inputs)."""
    batch = TOKENS, LENGTH
    if name == "gpt":
        dense = {"norm_layer": "layer", "mlp_layer": "dense", "num_kv_heads": 0, "use_bias": True}
        model, batch = language_model(dtype, **dense, position_embedding="learned", max_length=6), (TOKENS,)
    elif name == "gemma":
        gemma_options = {"norm": "sandwich", "mlp_layer": "geglu", "per_layer": "1:mask=window(2)"}
        model, batch = language_model(dtype, **gemma_options), (TOKENS,)
    elif name in ("llama", "scanned"):
        model, batch = language_model(dtype, scan_layers=name == "scanned"), (TOKENS,)
    elif name == "transformer":
        model = models.Transformer(with_dtype(configs.TransformerConfig(1, 2, **SMALL), dtype), 11, 11)
        batch = TOKENS, LENGTH, TOKENS[:, :4]
    elif name == "vit":
        options = with_dtype(configs.ViTConfig(patch_size=4, num_layers=2, **SMALL), dtype)
        images = jnp.asarray(np.random.default_rng(1).normal(size=(2, 8, 8, 1)), dtype)
        model, batch = models.ViT(options, classes=3, image_size=8), (images,)
    elif name == "text":
        model = TextClassifier(with_dtype(configs.TextClassifierConfig(num_layers=2, **SMALL), dtype), 11, 3)
    elif name == "pretrained":
        with tempfile.TemporaryDirectory() as place:
            their_decoders.directory(Path(place))
            lm = load_pretrained(place)
        options = with_dtype(replace(lm.model.options, scan_layers=True, remat=True), dtype)
        params = jax.tree.map(lambda x: jnp.asarray(x, dtype), stack_layers(lm.params, options))
        return lm.model.clone(options=options), params, (TOKENS,), ((TOKENS * 3 + 1) % 11,)
    elif name == "bert":
        options = with_dtype(configs.MaskedLanguageModelConfig(num_layers=2, max_length=6, **SMALL), dtype)
        model = models.MaskedLanguageModel(options, 11)
    inputs_2 = tuple(x[::-1] if x.ndim == 4 else (x * 3 + 1) % 11 if x.ndim == 2 else x for x in batch)
    return model, random_params(model, batch, dtype), batch, inputs_2


def random_params(model, batch, dtype="float32"):
    """Parameters that are neither zero nor tiny, so that every path through the model matters."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), *batch)
    assert set(shapes) == {"params"}
    r = np.random.default_rng(0)
    return jax.tree.map(lambda x: jnp.asarray(r.normal(size=x.shape, scale=0.5), dtype), shapes["params"])


def measure(output):
    """Of a logit at the last position of the first row, and of one of a classifier."""
    return output[0, 2] - output[0, 1] if output.ndim == 2 else output[0, -1, 3] - output[0, -1, 7] + output[1, 0, 2]
