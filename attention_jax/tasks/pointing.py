"""Pointer Networks on convex hulls (Vinyals et al. 2015): the output is a sequence of input positions."""

import jax.numpy as jnp
import numpy as np

from attention_jax.config import Config
from attention_jax.data.convex_hulls import Hulls, HullSets
from attention_jax.decode import greedy
from attention_jax.tasks import Evaluation, Task, build_model, loader_of
from attention_jax.train.placement import map_batches

EVALUATED = 1_000
"""Sets per batch in evaluation."""


def shift_right(target):
    """Shift targets [B, T] right by one step, 0 first: the decoder's inputs with teacher forcing."""
    return jnp.pad(target[:, :-1], ((0, 0), (1, 0)))


def polygon(row: np.ndarray) -> tuple[int, ...]:
    """Return the corners of a sequence of positions that ends with 0, starting from the lowest; () without a 0.

    >>> polygon(np.array([3, 1, 2, 3, 0])), polygon(np.array([1, 2, 3, 0, 0])), polygon(np.array([3, 1, 2]))
    ((1, 2, 3), (1, 2, 3), ())
    """
    walk = row.tolist()
    corners = walk[: walk.index(0)] if 0 in walk else []
    corners = corners[:-1] if corners[:1] == corners[-1:] else corners
    at = corners.index(min(corners)) if corners else 0
    return tuple(corners[at:] + corners[:at])


class PointingTask(Task):
    """A network that points at the corners of a convex hull; `data` are `HullSets`."""

    view = "attention_jax.views.pointing:PointingView"

    @classmethod
    def load(cls, config: Config) -> HullSets:
        return HullSets(*loader_of(config.data.loader)(config.data))

    @classmethod
    def make_model(cls, config: Config, data: HullSets):
        return build_model(config, data.train.inputs.shape[-1])

    def init(self, rng):
        rows = [array[:1] for array in self.data.train]
        return self.model.init(rng, rows[0], rows[1], rows[2])["params"]

    def log_p(self, params, batch):
        """Return log-probabilities [B, T, S] of the input positions, -inf for padding."""
        return self.model.apply({"params": params}, batch["inputs"], batch["length"], shift_right(batch["target"]))

    def nll(self, params, batch):
        """Return the negative log-likelihood of each hull in nats [B]."""
        log_p = jnp.take_along_axis(self.log_p(params, batch), batch["target"][:, :, None], axis=2)[:, :, 0]
        real = jnp.arange(log_p.shape[1])[None, :] < batch["target_length"][:, None]
        return -jnp.where(real, log_p, 0.0).sum(1)

    def loss(self, params, batch, rng):
        count = jnp.where(batch["weight"] > 0, batch["target_length"], 0)
        return (self.nll(params, batch) * batch["weight"]).sum(), count.sum().astype(jnp.float32), {}

    def generate(self, params, batch):
        """Decode positions [B, T] greedily."""
        apply = lambda *arguments, method: self.model.apply({"params": params}, *arguments, method=method)
        cache = apply(apply(batch["inputs"], batch["length"], method="encode"), method="start")
        step = lambda positions, cache: apply(cache, positions, method="step")
        rows, most = batch["target"].shape
        return greedy(step, cache, rows, bos=0, eos=0, max_length=most)

    def accuracy(self, params, sets: Hulls) -> float:
        """Return the fraction of point sets whose decoded sequence is the hull, from any starting corner."""
        rows = zip(map_batches(self.generate, params, sets._asdict(), EVALUATED), sets.target, strict=True)
        return float(np.mean([polygon(written) == polygon(target) for written, target in rows]))

    def evaluate(self, params, full: bool) -> Evaluation:
        valid = self.data.valid
        nats = map_batches(self.nll, params, valid._asdict(), EVALUATED).sum(dtype=np.float64)
        metrics = {"valid.loss": float(nats / valid.target_length.sum())}
        metrics["valid.accuracy"] = self.accuracy(params, valid)
        for name, sets in self.data.tests.items() if full else ():
            metrics[f"test.accuracy_{name}"] = self.accuracy(params, sets)
        return Evaluation(metrics, {})

    def metric_names(self, full: bool) -> list[str]:
        tests = self.data.tests if full else ()
        return ["valid.loss", "valid.accuracy", *(f"test.accuracy_{name}" for name in tests)]

    def eval_functions(self) -> dict:
        arrays = self.data.valid._asdict()
        return {"evaluation": (self.nll, arrays, EVALUATED), "decoding": (self.generate, arrays, EVALUATED)}

    def describe(self) -> dict:
        return {"longest_hull": int(self.data.train.target_length.max())}
