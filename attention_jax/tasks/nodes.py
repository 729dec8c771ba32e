"""Semi-supervised node classification on one graph, full batch: an epoch is one step on the whole graph."""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.config import Config
from attention_jax.data.citations import Graph
from attention_jax.ops.losses import token_accuracy
from attention_jax.tasks import Evaluation, Task, build_model
from attention_jax.train.placement import map_batches


def l2_penalty(params) -> jax.Array:
    """Return half the sum of all squared parameters, including biases as in the authors' code.

    >>> l2_penalty({"kernel": jnp.array([1.0, 2.0]), "bias": jnp.array([3.0])}).item()
    7.0
    """
    return 0.5 * sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(params))


class NodeTask(Task):
    """A classifier of nodes; `data` is a `Graph`, and a batch is the whole graph."""

    view = "attention_jax.views.nodes:NodeView"
    batch_sizes = (1,)

    @classmethod
    def make_model(cls, config: Config, data: Graph):
        return build_model(config, data.features, data.classes)

    @property
    def examples(self) -> tuple[dict, ...]:
        """One example, the graph; "train" is 1 for the labeled nodes."""
        graph = self.data
        train = np.zeros(len(graph.label), np.float32)
        train[graph.splits["train"]] = 1.0
        arrays = {"words": graph.words, "values": graph.values, "edges": graph.edges, "label": graph.label}
        return ({name: array[None] for name, array in (arrays | {"train": train}).items()},)

    def init(self, rng):
        graph = self.data
        return self.model.init(rng, *(jnp.asarray(x) for x in (graph.words, graph.values, graph.edges)))["params"]

    def logits(self, params, batch, rng=None):
        """Return class logits [B, N, C] of the nodes, with dropout if `rng` is given."""
        rngs = None if rng is None else {"dropout": rng}
        apply = lambda *graph: self.model.apply({"params": params}, *graph, train=rng is not None, rngs=rngs)[0]
        return jax.vmap(apply)(batch["words"], batch["values"], batch["edges"])

    def loss(self, params, batch, rng):
        """Mean cross-entropy of the labeled nodes, plus the L2 penalty."""
        logits, label = self.logits(params, batch, rng), batch["label"]
        weight = batch["train"] * batch["weight"][:, None]
        total = (cross_entropy(logits, label) * weight).sum()
        penalty = self.config.model.l2 * l2_penalty(params) * weight.sum()
        return total + penalty, weight.sum(), {"accuracy": token_accuracy(logits.argmax(-1), label, weight)}

    def score_nodes(self, params, batch):
        """Return loss, correctness and predicted class of each node."""
        logits, label = self.logits(params, batch), batch["label"]
        guess = logits.argmax(-1)
        return {"loss": cross_entropy(logits, label), "accuracy": (guess == label).astype(jnp.float32), "guess": guess}

    def evaluate(self, params, full: bool) -> Evaluation:
        """Evaluate the validation nodes, in `full` also the test nodes."""
        scores = map_batches(self.score_nodes, params, self.examples[0], 1)
        metrics = {}
        for split in ("valid", "test") if full else ("valid",):
            for name in ("loss", "accuracy"):
                metrics[f"{split}.{name}"] = float(scores[name][0, self.data.splits[split]].mean(dtype=np.float64))
        return Evaluation(metrics, {})

    def metric_names(self, full: bool) -> list[str]:
        return [f"{split}.{name}" for split in ("valid", "test")[: 1 + full] for name in ("loss", "accuracy")]

    def eval_functions(self) -> dict:
        return {"evaluation": (self.score_nodes, self.examples[0], 1)}

    def describe(self) -> dict:
        graph = self.data
        sizes = {
            "nodes": len(graph.label),
            "edges": len(graph.edges),
            "words": graph.features,
            "classes": graph.classes,
        }
        return sizes | {f"{name}_nodes": len(nodes) for name, nodes in graph.splits.items()}


def cross_entropy(logits, label):
    """Return the cross-entropy in nats [...] of logits [..., C] and labels [...]."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), label[..., None], axis=-1)[..., 0]
