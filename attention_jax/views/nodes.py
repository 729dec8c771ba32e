"""Graph attention networks: the predicted class of a node, and the neighbors that it attends to."""

from pathlib import Path

import jax
import numpy as np

from attention_jax.data.citations import Graph
from attention_jax.errors import InputError
from attention_jax.report.attention_data import Attention, AttentionRecord, Axis, Prediction
from attention_jax.report.panels import confusion_matrix
from attention_jax.tasks import Evaluation
from attention_jax.train.placement import map_batches
from attention_jax.views import View

SHOWN = 3
"""The number of test nodes on the page of attention maps: those with the most neighbors."""


class NodeView(View):
    """Predicted classes of nodes, and the neighbors that they attend to."""

    def attention(self, params, batch):
        """Return probabilities [B, N, C] and the edge weights of both layers, {"hidden": [B, H, P], ...}."""
        apply = lambda *graph: self.model.apply({"params": params}, *graph, return_weights=True)
        logits, weights = jax.vmap(apply)(batch["words"], batch["values"], batch["edges"])
        return {"probabilities": jax.nn.softmax(logits), **weights}

    def excerpt(self) -> Graph:
        """Return the whole graph, since a node is classified by its neighbors."""
        return self.data

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        """Plot the confusion matrix of the test nodes."""
        test, names = self.data.splits["test"], [f"{label}" for label in range(self.data.classes)]
        guess = map_batches(self.task.score_nodes, params, self.task.examples[0], 1)["guess"][0, test]
        counts = np.zeros((len(names), len(names)), np.int64)
        np.add.at(counts, (self.data.label[test], guess), 1)
        return [confusion_matrix(counts, names, directory / "confusion.png")]

    def nodes_of(self, texts: list[str]) -> list[int]:
        """Parse node numbers such as "1708"; InputError for other texts."""
        count = len(self.data.label)
        for text in texts:
            if not (text.strip().isdecimal() and int(text) < count):
                raise InputError(f"a node must be a number from 0 to {count - 1}, got {text!r}")
        return [int(text) for text in texts]

    def predict(self, params, texts: list[str], figure: Path | None = None) -> list[str]:
        """Return class and probability for each node number."""
        if figure is not None:
            raise InputError(
                "--attention cannot plot a graph: `launch.py look` shows the neighbors that a node attends to"
            )
        nodes = self.nodes_of(texts)
        probabilities = map_batches(self.attention, params, self.task.examples[0], 1)["probabilities"][0, nodes]
        return [f"class {row.argmax()} {row.max():.3f}" for row in probabilities]

    def attention_maps(self, params, texts: list[str]) -> tuple[AttentionRecord, ...]:
        """Return the hidden layer's attention of these nodes, or of a few test nodes."""
        test, edges = self.data.splits["test"], self.data.edges
        most = test[np.argsort(-np.bincount(edges[:, 0])[test], kind="stable")[:SHOWN]]
        outputs = map_batches(self.attention, params, self.task.examples[0], 1)
        records = []
        for node in self.nodes_of(texts) if texts else most.tolist():
            node_edges, probabilities = edges[:, 0] == node, outputs["probabilities"][0, node]
            keys = tuple(f"{key}: class {self.data.label[key]}" for key in edges[node_edges, 1])
            weights = outputs["hidden"][0][None, :, None, node_edges]  # [1, H, 1, K]
            attention = Attention("encoder", weights, Axis((f"{node}",)), Axis(keys))
            best, sure = int(probabilities.argmax()), float(probabilities.max())
            records.append(
                AttentionRecord(
                    f"node {node}", (Prediction(f"class {best}", (attention,), sure, "the probability", sure),)
                )
            )
        return tuple(records)
