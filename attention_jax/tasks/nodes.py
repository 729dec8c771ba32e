"""Classes of the nodes of one graph, of which a few are known: an epoch is one step on the whole graph."""

from dataclasses import dataclass
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import InputError
from attention_jax.config import Config, named
from attention_jax.data import batches
from attention_jax.data.citations import Graph
from attention_jax.ops.metrics import token_accuracy
from attention_jax.report.attended import Answer, Attention, Looked, Side
from attention_jax.report.panels import confusion_matrix
from attention_jax.tasks import Evaluation, build_model, load_once
from attention_jax.train.placement import map_batches

SHOWN = 3
"""Test nodes on the page of what is attended to: those with the most neighbours."""


def build(config: Config) -> "NodeTask":
    """The task of a graph network on the graph that its data name."""
    graph = load_once(named(config.data.loader), config.data)
    return NodeTask(config, graph, build_model(config, graph.features, graph.classes))


def half_squares(params) -> jax.Array:
    """Half the sum of all squared parameters, biases included, as the authors' code has it.

    >>> half_squares({"kernel": jnp.array([1.0, 2.0]), "bias": jnp.array([3.0])}).item()
    7.0
    """
    return 0.5 * sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(params))


@dataclass(frozen=True, eq=False)
class NodeTask:
    """A classifier of nodes (attention_jax/tasks/__init__.py says what the methods promise). A batch is a graph."""

    config: Config
    data: Graph
    model: nn.Module

    @property
    def buckets(self) -> tuple[dict, ...]:
        """One row, the graph; "train" is 1 for the nodes whose class is known."""
        graph = self.data
        train = np.zeros(len(graph.label), np.float32)
        train[graph.splits["train"]] = 1.0
        arrays = {"words": graph.words, "values": graph.values, "edges": graph.edges, "label": graph.label}
        return ({name: array[None] for name, array in (arrays | {"train": train}).items()},)

    def init(self, rng):
        graph = self.data
        return self.model.init(rng, *(jnp.asarray(x) for x in (graph.words, graph.values, graph.edges)))["params"]

    def logits(self, params, batch, rng=None):
        """[B, N, C], with dropout where there is an `rng`."""
        rngs = None if rng is None else {"dropout": rng}
        one = lambda *graph: self.model.apply({"params": params}, *graph, train=rng is not None, rngs=rngs)[0]
        return jax.vmap(one)(batch["words"], batch["values"], batch["edges"])

    def loss(self, params, batch, rng):
        """The mean over the known nodes of their cross-entropy, and the L2 penalty."""
        logits, label = self.logits(params, batch, rng), batch["label"]
        weight = batch["train"] * batch["weight"][:, None]
        total = (cross_entropy(logits, label) * weight).sum()
        penalty = self.config.model.l2 * half_squares(params) * weight.sum()
        return total + penalty, weight.sum(), {"accuracy": token_accuracy(logits.argmax(-1), label, weight)}

    def plan(self, epoch: int, steps_per_call: int) -> list[batches.Chunk]:
        return batches.plan(self.config.train.seed, epoch, [1], [1], steps_per_call)

    def score_nodes(self, params, batch):
        """Loss, correctness and predicted class of each node."""
        logits, label = self.logits(params, batch), batch["label"]
        guess = logits.argmax(-1)
        return {"loss": cross_entropy(logits, label), "accuracy": (guess == label).astype(jnp.float32), "guess": guess}

    def evaluate(self, params, full: bool) -> Evaluation:
        """Of the validation nodes, and in `full` of the test nodes, too."""
        found = map_batches(self.score_nodes, params, self.buckets[0], 1)
        metrics = {}
        for split in ("valid", "test") if full else ("valid",):
            for name in ("loss", "accuracy"):
                metrics[f"{split}.{name}"] = float(found[name][0, self.data.splits[split]].mean(dtype=np.float64))
        return Evaluation(metrics, {})

    def metric_names(self, full: bool) -> list[str]:
        return [f"{split}.{name}" for split in ("valid", "test")[: 1 + full] for name in ("loss", "accuracy")]

    def evaluated_with(self) -> dict:
        return {"evaluation": (self.score_nodes, self.buckets[0], 1)}

    def look(self, params, batch):
        """Probabilities [B, N, C] and the weights of the edges in both layers, {"hidden": [B, H, P], ...}."""
        one = lambda *graph: self.model.apply({"params": params}, *graph, look=True)
        logits, weights = jax.vmap(one)(batch["words"], batch["values"], batch["edges"])
        return {"probabilities": jax.nn.softmax(logits), **weights}

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        """The classes of the test nodes that are confused with each other."""
        test, names = self.data.splits["test"], [f"{label}" for label in range(self.data.classes)]
        guess = map_batches(self.score_nodes, params, self.buckets[0], 1)["guess"][0, test]
        counts = np.zeros((len(names), len(names)), np.int64)
        np.add.at(counts, (self.data.label[test], guess), 1)
        return [confusion_matrix(counts, names, directory / "confusion.png")]

    def nodes_of(self, texts: list[str]) -> list[int]:
        """Nodes from texts such as "1708". Raises InputError where one is none."""
        count = len(self.data.label)
        for text in texts:
            if not (text.strip().isdecimal() and int(text) < count):
                raise InputError(f"a node must be a number from 0 to {count - 1}, got {text!r}")
        return [int(text) for text in texts]

    def predict(self, params, texts: list[str], figure: Path | None) -> list[str]:
        """The class of each node that a text is the number of, and its probability."""
        if figure is not None:
            raise InputError(
                "--attention draws no picture of a graph: `launch.py look` shows the neighbours that a node attends to"
            )
        nodes = self.nodes_of(texts)
        probabilities = map_batches(self.look, params, self.buckets[0], 1)["probabilities"][0, nodes]
        return [f"class {row.argmax()} {row.max():.3f}" for row in probabilities]

    def looked(self, params, texts: list[str]) -> tuple[Looked, ...]:
        """What these nodes attend to in the hidden layer, or a few test nodes."""
        test, edges = self.data.splits["test"], self.data.edges
        most = test[np.argsort(-np.bincount(edges[:, 0])[test], kind="stable")[:SHOWN]]
        found = map_batches(self.look, params, self.buckets[0], 1)
        looked = []
        for node in self.nodes_of(texts) if texts else most.tolist():
            own, probabilities = edges[:, 0] == node, found["probabilities"][0, node]
            keys = tuple(f"{key}: class {self.data.label[key]}" for key in edges[own, 1])
            weights = found["hidden"][0][None, :, None, own]  # [1, H, 1, K]
            attention = Attention("encoder", weights, Side((f"{node}",)), Side(keys))
            best, sure = int(probabilities.argmax()), float(probabilities.max())
            looked.append(
                Looked(f"node {node}", (Answer(f"class {best}", (attention,), sure, "the probability", sure),))
            )
        return tuple(looked)

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
    """Nats of each node: logits [..., C] and label [...] -> [...]."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), label[..., None], axis=-1)[..., 0]
