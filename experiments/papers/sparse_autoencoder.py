"""Sparse autoencoders and transcoders: an activation x as a sum of few of many learned directions.

With x and the target t of zero mean and E ||x||^2 = D, the N features and the output are

    z = f(x E + b),    y = z D + d,    of the loss  ||t - y||^2 / D + the penalty,

where the rows of D, the directions, have norm 1. An autoencoder has t = x, a transcoder another site's activation.

* topk (Gao et al. 2024, arXiv 2406.04093, eq. 1-2): f keeps the k largest, where they are positive; no penalty. The
  auxiliary loss of dead features (their section 2.4) is left out.
* jumprelu (Rajamanoharan et al. 2024, arXiv 2407.14435, eq. 3, 9-12): f(u) = u where u > theta, one threshold of each
  feature, else 0; the penalty is lambda times the number of active features. Both have the pseudo-derivatives of the
  paper by theta, of a rectangle of the width epsilon.

The size N is a number and no shape: of `largest` features those from `size` on are never active, so that dictionaries
of several sizes, penalties and seeds are one compiled program (attention_jax/sweep/batch.py).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attention_jax import interpret
from attention_jax.errors import InputError
from attention_jax.tasks import Evaluation, Task, build_model
from attention_jax.train.placement import map_batches
from experiments.papers.options import Activations, SparseAutoencoderConfig

EVALUATED = 1024
"""Activations of a batch of the evaluation."""


# --- the model


def top_k(u: Float[Array, "B N"], k: int) -> Float[Array, "B N"]:
    """The k largest of each row where they are positive, else 0.

    >>> top_k(jnp.array([[0.5, -1.0, 2.0, 1.0], [-1.0, -2.0, 3.0, -4.0]]), 2).tolist()
    [[0.0, 0.0, 2.0, 1.0], [0.0, 0.0, 3.0, 0.0]]
    """
    smallest = jax.lax.stop_gradient(jax.lax.top_k(u, k)[0][:, -1:])
    return jnp.where(u >= smallest, jax.nn.relu(u), 0)


def rectangle(u: Array, theta: Array, width: float) -> Array:
    """1 / width within width / 2 of theta, else 0."""
    return jnp.where(jnp.abs(u - theta) < width / 2, 1 / width, 0.0)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def jump_relu(u: Float[Array, "B N"], theta: Float[Array, "1 N"], width: float) -> Float[Array, "B N"]:
    """u where it is above theta, else 0, with the pseudo-derivative -theta rectangle(u) by theta (eq. 11).

    >>> jump_relu(jnp.array([[0.5, 0.1]]), jnp.array([[0.2, 0.2]]), 0.1).tolist()
    [[0.5, 0.0]]
    """
    return jnp.where(u > theta, u, 0)


def _jump_relu_forward(u, theta, width):
    return jump_relu(u, theta, width), (u, theta)


def _jump_relu_backward(width, residuals, bar):
    u, theta = residuals
    by_theta = -theta * rectangle(u, theta, width) * bar
    return jnp.where(u > theta, bar, 0), by_theta.sum(0, keepdims=True)


jump_relu.defvjp(_jump_relu_forward, _jump_relu_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def step(u: Float[Array, "B N"], theta: Float[Array, "1 N"], width: float) -> Float[Array, "B N"]:
    """1 where u is above theta, else 0, with the pseudo-derivative -rectangle(u) by theta (eq. 12)."""
    return jnp.where(u > theta, 1.0, 0.0)


def _step_forward(u, theta, width):
    return step(u, theta, width), (u, theta)


def _step_backward(width, residuals, bar):
    u, theta = residuals
    return jnp.zeros_like(u), (-rectangle(u, theta, width) * bar).sum(0, keepdims=True)


step.defvjp(_step_forward, _step_backward)


class SparseAutoencoder(nn.Module):
    """The dictionary of N features; `encode` and `decode` are its halves."""

    options: SparseAutoencoderConfig
    inputs: int
    outputs: int

    def setup(self):
        features = self.options.largest
        directions = lambda rng, shape: _unit_rows(jax.random.normal(rng, shape))
        self.decoder = self.param("decoder", directions, (features, self.outputs))
        start = lambda rng, shape: self.decoder.T if shape == self.decoder.T.shape else directions(rng, shape[::-1]).T
        self.encoder = self.param("encoder", start, (self.inputs, features))
        self.encoder_bias = self.param("encoder_bias", nn.initializers.zeros, (features,))
        self.decoder_bias = self.param("decoder_bias", nn.initializers.zeros, (self.outputs,))
        if self.options.activation == "jumprelu":
            theta = nn.initializers.constant(np.log(self.options.first_threshold))
            self.log_threshold = self.param("log_threshold", theta, (features,))

    def __call__(self, x: Float[Array, "B D"]):
        """(output [B, E], features [B, N], how many are active [B], differentiable by the thresholds)."""
        features, count = self.encode(x)
        return self.decode(features), features, count

    def encode(self, x: Float[Array, "B D"]) -> tuple[Float[Array, "B N"], Float[Array, "B"]]:
        """The features, and how many of them are active."""
        o = self.options
        exists = jnp.arange(o.largest, dtype=jnp.float32)[None] < o.size
        u = jnp.where(exists, x @ self.encoder + self.encoder_bias[None], -jnp.inf)
        if o.activation == "topk":
            features = top_k(u, o.k)
            return features, (features > 0).sum(1).astype(x.dtype)
        theta = jnp.exp(self.log_threshold)[None]
        return jump_relu(u, theta, o.width), step(u, theta, o.width).sum(1)

    def decode(self, features: Float[Array, "B N"]) -> Float[Array, "B E"]:
        """The sum of the directions, each times its feature."""
        return features @ _unit_rows(self.decoder) + self.decoder_bias[None]


def _unit_rows(x):
    return x / jnp.linalg.norm(x, axis=1, keepdims=True)


# --- data


class Scale(NamedTuple):
    """What makes the mean of activations zero and their mean squared norm their width."""

    mean: Float[np.ndarray, "D"]
    factor: float

    def apply(self, x: Float[Array, "N D"]) -> Float[Array, "N D"]:
        """Scaled activations."""
        return (x - self.mean[None]) * self.factor

    def undo(self, x: Float[Array, "N D"]) -> Float[Array, "N D"]:
        """Activations from scaled ones."""
        return x / self.factor + self.mean[None]


class Pairs(NamedTuple):
    """Scaled activations [N, D] of tokens, and what is to be computed from them [N, E]."""

    input: np.ndarray
    target: np.ndarray


class ActivationData(NamedTuple):
    """Training and validation activations, of other texts, and their scales."""

    train: Pairs
    valid: Pairs
    input_scale: Scale
    target_scale: Scale


def load(options: Activations) -> ActivationData:
    """Read a store of `attention_jax.interpret.activations`; without a path, generate sparse sums of 64 directions."""
    if not options.path:
        return _split(*_generate(), options)
    store = interpret.open_activations(options.path)
    used = store.position >= options.skip_first
    arrays = [np.asarray(store[site], np.float32)[used] for site in (options.site, options.target or options.site)]
    if any(x.ndim != 2 for x in arrays):
        raise InputError(f"an autoencoder is of a vector for each token, [B, T, D]; {options.site} has more axes")
    return _split(arrays[0], arrays[1], store.text[used], options)


def _split(x, target, text, options: Activations) -> ActivationData:
    """The texts of which the number's remainder by 1 / `held_out` is 0 are for validation."""
    is_valid = text % round(1 / options.held_out) == 0
    if is_valid.all() or not is_valid.any():
        raise InputError(f"{len(np.unique(text))} texts cannot be divided: give more, or another --data.held-out")
    scales = [_scale_of(array[~is_valid]) for array in (x, target)]
    scaled = [scale.apply(array).astype(np.float32) for scale, array in zip(scales, (x, target))]
    return ActivationData(Pairs(*(a[~is_valid] for a in scaled)), Pairs(*(a[is_valid] for a in scaled)), *scales)


def _scale_of(x: np.ndarray) -> Scale:
    mean = x.mean(0, dtype=np.float64).astype(np.float32)
    norm = np.square(x - mean, dtype=np.float64).sum(1).mean()
    return Scale(mean, float(np.sqrt(x.shape[1] / norm)))


def _generate() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """4,000 sums of four of 64 directions of 16 numbers, of 40 texts."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(64, 16))
    features = np.zeros((4000, 64))
    np.put_along_axis(features, np.argsort(rng.random(features.shape))[:, :4], rng.uniform(1, 2, (4000, 4)), axis=1)
    x = (features @ directions).astype(np.float32)
    return x, x, np.arange(4000) // 100


# --- training


class SparseAutoencoderTask(Task):
    """Training of a dictionary; `data` is `ActivationData`."""

    @classmethod
    def make_model(cls, config, data: ActivationData):
        return build_model(config, data.train.input.shape[1], data.train.target.shape[1])

    def init(self, rng):
        return self.model.init(rng, jnp.zeros((1, self.data.train.input.shape[1])))["params"]

    def loss(self, params, batch, rng):
        """The mean squared error of a coordinate, plus the penalty."""
        y, _, count = self.model.apply({"params": params}, batch["input"])
        error, weight = jnp.square(batch["target"] - y).mean(1), batch["weight"]
        penalty = self.config.model.penalty * count if self.config.model.activation == "jumprelu" else 0.0
        total = weight.sum()
        return ((error + penalty) * weight).sum(), total, {"l0": ((count * weight).sum(), total)}

    def measure(self, params, batch):
        """Squared errors [B], squared norms of the targets [B], counts [B] and whether features are active [B, N]."""
        y, features, count = self.model.apply({"params": params}, batch["input"])
        target = batch["target"]
        return jnp.square(target - y).sum(1), jnp.square(target).sum(1), count, features > 0

    def evaluate(self, params, full: bool) -> Evaluation:
        """Explained variance, active features of a token (L0), and the share of features that are never active."""
        error, norm, count, active = map_batches(self.measure, params, self.data.valid._asdict(), EVALUATED)
        total = lambda x: x.sum(dtype=np.float64)
        metrics = {
            "valid.loss": float(total(error) / self.data.valid.target.size),
            "valid.explained": float(1 - total(error) / total(norm)),
            "valid.l0": float(count.mean(dtype=np.float64)),
            "valid.dead": float(1 - active.any(0).sum() / self.config.model.size),
        }
        return Evaluation(metrics, {})

    def metric_names(self, full: bool) -> list[str]:
        return ["valid.loss", "valid.explained", "valid.l0", "valid.dead"]

    def describe(self) -> dict:
        return {"train_tokens": len(self.data.train.input), "valid_tokens": len(self.data.valid.input)}

    def reconstruct(self, params) -> Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]]:
        """What an autoencoder makes of activations: a function for `set` of `interpret.run`."""
        if self.config.data.target not in ("", self.config.data.site):
            raise InputError("a transcoder computes another site than it reads: it reconstructs none")
        return partial(_reconstruct, self.model, self.data.input_scale, params)


def _reconstruct(model, scale: Scale, params, x):
    rows = x.reshape(-1, x.shape[-1])
    y, *_ = model.apply({"params": params}, scale.apply(rows))
    return scale.undo(y).reshape(x.shape).astype(x.dtype)
