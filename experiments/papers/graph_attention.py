"""Graph attention networks (Velickovic et al. 2018): each node attends to its neighbors in a graph and to itself.

The details are those of the authors' code (github.com/PetarV-/GAT, execute_cora.py and utils/layers.py): each head has
its own dropout of the inputs, the projected vectors are dropped once more where they are values, and each head adds a
bias to what it has pooled.

The data are citation networks: graphs of papers with bag-of-words features, citation edges and subject labels. A file
is an .npz with these arrays, as of Cora in the split of Yang et al. 2016 ("Planetoid"):

| array | shape | what it holds |
|---|---|---|
| feature_row, feature_column | [M] | the words: paper feature_row[i] has word feature_column[i] |
| shape | [2] | how many papers N and how many words F there are |
| label | [N] | the subject of each paper, from 0 |
| edges | [E, 2] | (a, b): paper a attends to paper b; a link in both directions is there twice |
| train, valid, test | [n] | the numbers of the papers of each split |

The classification is semi-supervised, and an epoch is one step on the whole graph.
"""

import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from attention_jax.config import Config
from attention_jax.data.stored import storable
from attention_jax.errors import InputError
from attention_jax.models.multihead import Linear
from attention_jax.models.named_scores import parse_score
from attention_jax.models.parts import make_part_per_head
from attention_jax.ops.dropout import dropout, dropout_bits, dropout_factor, is_zero
from attention_jax.ops.losses import token_accuracy
from attention_jax.ops.scores import Score, prepare
from attention_jax.report.attention_data import Attention, AttentionRecord, Axis, Prediction
from attention_jax.report.panels import confusion_matrix, count_confusions
from attention_jax.tasks import Evaluation, Task, build_model
from attention_jax.train.placement import map_batches
from experiments.papers.options import Citations, GraphAttentionConfig

SPLITS = ("train", "valid", "test")
ARRAYS = ("feature_row", "feature_column", "shape", "label", "edges", *SPLITS)
SUBJECTS, WORDS = 7, 70
"""Number of classes and vocabulary size of a generated graph."""
SHOWN = 3
"""The number of test nodes on the page of attention maps: those with the most neighbors."""


# --- attention over the edges of a graph


def edge_weights(
    query: Float[Array, "Q D"], key: Float[Array, "K E"], edges: Int[Array, "P 2"], *, score: Score
) -> Float[Array, " P"]:
    """Compute the attention weight of each pair (q, k) in `edges`: a softmax over the pairs of the same query.

    A pair whose score is -inf has weight 0.
    """
    score, query, key = prepare(score, query, key)
    pair_score = lambda q, k: score(q[None], k[None])[0, 0]
    scores = jax.vmap(pair_score)(query[edges[:, 0]], key[edges[:, 1]])  # [P]
    largest = jax.ops.segment_max(jax.lax.stop_gradient(scores), edges[:, 0], len(query))
    shift = jnp.where(largest == -jnp.inf, 0.0, largest)[edges[:, 0]]
    exponentials = jnp.exp(scores - shift)
    total = jax.ops.segment_sum(exponentials, edges[:, 0], len(query))
    return exponentials / jnp.where(total > 0, total, 1.0)[edges[:, 0]]


def attend_edges(
    query: Float[Array, "Q D"],
    key: Float[Array, "K E"],
    value: Float[Array, "K V"],
    edges: Int[Array, "P 2"],
    *,
    score: Score,
    dropout: Float[Array, ""] | float | None = None,
    rng: Key[Array, ""] | None = None,
) -> Float[Array, "Q V"]:
    """`attend(query, key, value, mask=dense(adjacency), ...)` where adjacency[q, k] is True for the pairs in `edges`.

    Every pair is listed once, in any order. `score`, `dropout` and `rng` are as in `attend`, and dropout drops the same
    weights. A query without an edge gets exactly zero. For the 13,264 pairs among 2,708 nodes of Cora and 8 heads of 8,
    the gradient takes about a fiftieth of the time of the masked matrix (0.02 s for 1.0 on one CPU core).

    >>> from attention_jax.ops.scores import Constant
    >>> value = jnp.array([[1.0], [3.0], [5.0]])
    >>> attend_edges(value, value, value, jnp.array([[0, 0], [0, 1], [2, 1]]), score=Constant()).tolist()
    [[2.0], [0.0], [3.0]]
    """
    weights = edge_weights(query, key, edges, score=score)
    if rng is not None and dropout is not None and not is_zero(dropout):
        for_queries, for_keys = dropout_bits(rng, len(query), len(key))
        pair_factor = lambda q, k: dropout_factor(q[None], k[None], dropout)[0, 0]
        weights = weights * jax.vmap(pair_factor)(for_queries[edges[:, 0]], for_keys[edges[:, 1]])  # [P]
    pooled = weights[:, None] * value[edges[:, 1]].astype(weights.dtype)  # [P, V]
    return jax.ops.segment_sum(pooled, edges[:, 0], len(query)).astype(value.dtype)


# --- the model


class WordProjection(nn.Module):
    """x W_h for every head h, where x [N, F] is mostly zero and W is `kernel` [F, H, U].

    The nonzero numbers of node n are values[n, i] in the columns words[n, i]; a value of 0 fills a shorter list. Each
    head has its own dropout of x.
    """

    features: int
    heads: int
    units: int
    dropout: Any

    @nn.compact
    def __call__(self, words: Int[Array, "N M"], values: Float[Array, "N M"], *, train=False) -> Float[Array, "N H U"]:
        glorot = nn.initializers.glorot_uniform(in_axis=0, out_axis=2, batch_axis=1)
        kernel = self.param("kernel", glorot, (self.features, self.heads, self.units))
        values = jnp.broadcast_to(values[:, :, None], (*values.shape, self.heads))  # [N, M, H]
        values = dropout(values, self.dropout, self.make_rng("dropout") if train else None)
        return jnp.einsum("nmh,nmhu->nhu", values, kernel[words])  # [N, H, U]


class GraphHeads(nn.Module):
    """softmax_j(score(W h_i, W h_j)) W h_j + b over the neighbors j of each node i (equations 3 and 4), H heads."""

    score: str
    """A name in `config.SCORES`, or package.file:Class."""
    dropout: Any
    attention_dropout: Any

    @nn.compact
    def __call__(
        self, projected: Float[Array, "N H U"], edges: Int[Array, "P 2"], *, train=False, return_weights=False
    ):
        """The projected nodes W h -> (output [N, H, U], edge weights [H, P] if `return_weights` else None)."""
        _, heads, units = projected.shape
        score, bias = (
            make_part_per_head(self, "score", parse_score(self.score), heads, units),
            self.param("bias", nn.initializers.zeros, (heads, units)),
        )
        vectors = projected.swapaxes(0, 1)  # [H, N, U]
        values = dropout(vectors, self.dropout, self.make_rng("dropout") if train else None)
        rngs = jax.random.split(self.make_rng("dropout"), heads) if train else None

        def pool(vectors, values, score, rng):
            rate = self.attention_dropout
            return attend_edges(vectors, vectors, values, edges, score=score, dropout=rate, rng=rng)

        pooled = jax.vmap(pool)(vectors, values, score, rngs)  # [H, N, U]
        weigh = lambda vectors, score: edge_weights(vectors, vectors, edges, score=score)
        return pooled.swapaxes(0, 1) + bias[None], jax.vmap(weigh)(vectors, score) if return_weights else None


class GraphAttention(nn.Module):
    """Two layers (section 3.3): concatenated heads with an ELU, then one head that outputs the class logits."""

    options: GraphAttentionConfig
    features: int
    classes: int

    @nn.compact
    def __call__(
        self,
        words: Int[Array, "N M"],
        values: Float[Array, "N M"],
        edges: Int[Array, "P 2"],
        *,
        train: bool = False,
        return_weights: bool = False,
    ) -> tuple[Float[Array, "N C"], dict]:
        """Logits, and with `return_weights` the weights of the edges: {"hidden": [H, P], "output": [1, P]}.

        `words` and `values` are those of `WordProjection`; node q attends to node k for each (q, k) in `edges`.
        """
        o = self.options
        heads = lambda name: GraphHeads(o.score, o.dropout, o.attention_dropout, name=name)
        projected = WordProjection(self.features, o.num_heads, o.hidden_size, o.dropout, name="hidden_projection")(
            words, values, train=train
        )
        hidden, hidden_weights = heads("hidden")(projected, edges, train=train, return_weights=return_weights)
        hidden = nn.elu(hidden).reshape(len(words), -1)  # [N, H U]
        hidden = dropout(hidden, o.dropout, self.make_rng("dropout") if train else None)
        projected = Linear(self.classes, use_bias=False, name="output_projection")(hidden)
        logits, output_weights = heads("output")(projected[:, None], edges, train=train, return_weights=return_weights)
        return logits[:, 0], {"hidden": hidden_weights, "output": output_weights} if return_weights else {}


# --- data


@storable
class Graph(NamedTuple):
    """A graph of N nodes; some of them belong to a split."""

    words: np.ndarray
    """[N, M] int32: the features of each node that are not zero, filled with 0"""
    values: np.ndarray
    """[N, M] float32: these features, which sum to 1 for each node, filled with 0.0"""
    edges: np.ndarray
    """[P, 2] int32: (q, k) for each node k that node q attends to, itself included; sorted, each pair once"""
    label: np.ndarray
    """[N] int32"""
    splits: dict[str, np.ndarray]
    """{"train", "valid", "test": numbers of nodes}"""
    features: int
    classes: int


def load(options: Citations) -> Graph:
    """Load the graph from the file in `options`, or generate one."""
    if not options.path and not options.num_nodes:
        raise InputError(
            "--data.path must be a cora.npz (experiments/papers/graph_attention.py says what is in it), and none was "
            "given; --data.num-nodes 200 generates a graph instead"
        )
    return assemble(read_arrays(options.path) if options.path else generate(options.num_nodes), options.neighbors)


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """Read the arrays of a file; InputError if it does not contain a graph."""
    try:
        with open(path, "rb") as file, np.lib.npyio.NpzFile(file) as npz:
            arrays = {name: npz[name] for name in ARRAYS if name in npz}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"--data.path must be a cora.npz; {path} cannot be read ({error})") from error
    missing = [name for name in ARRAYS if name not in arrays]
    if missing:
        raise InputError(f"{path} must have the arrays {', '.join(ARRAYS)}; it does not have {', '.join(missing)}")
    nodes, features = (int(size) for size in arrays["shape"])
    sizes = {"feature_row": nodes, "feature_column": features, "edges": nodes} | dict.fromkeys(SPLITS, nodes)
    for name, size in sizes.items():
        if arrays[name].size == 0 or arrays[name].min() < 0 or arrays[name].max() >= size:
            raise InputError(f"{path}: {name} must have numbers from 0 to {size - 1}, and some of them")
    if len(arrays["label"]) != nodes or arrays["label"].min() < 0:
        raise InputError(f"{path}: label must have {nodes} numbers from 0; it has {len(arrays['label'])}")
    chosen = np.concatenate([arrays[name] for name in SPLITS])
    if len(np.unique(chosen)) < len(chosen):
        raise InputError(f"{path}: train, valid and test must have no paper in common")
    return arrays


def generate(nodes: int) -> dict[str, np.ndarray]:
    """Generate a graph whose papers use the ten words of their subject, and cite papers of their subject, more often
    than others; one fifth of the nodes is the training set and another one the validation set."""
    if nodes < 10 * SUBJECTS:
        raise InputError(f"--data.num-nodes must be 0 or at least {10 * SUBJECTS}, got {nodes}")
    rng = np.random.default_rng(0)
    label = np.arange(nodes) % SUBJECTS
    on_topic = np.arange(WORDS)[None, :] % SUBJECTS == label[:, None]
    row, column = np.nonzero(rng.random((nodes, WORDS)) < np.where(on_topic, 0.3, 0.1))
    same = label[:, None] == label[None, :]
    linked = np.triu(rng.random((nodes, nodes)) < np.where(same, 3.0, 0.2) * SUBJECTS / nodes, 1)
    train, valid, test = np.split(np.arange(nodes), [nodes // 5, 2 * nodes // 5])
    return {
        "feature_row": row,
        "feature_column": column,
        "shape": np.array([nodes, WORDS]),
        "label": label,
        "edges": np.argwhere(linked | linked.T),
        "train": train,
        "valid": valid,
        "test": test,
    }


def assemble(arrays: dict[str, np.ndarray], neighbors: bool = True) -> Graph:
    """Build the graph with self-loops; without `neighbors` the self-loops are its only edges."""
    nodes, features = (int(size) for size in arrays["shape"])
    row, column = np.unique(np.stack([arrays["feature_row"], arrays["feature_column"]]), axis=1)
    count = np.bincount(row, minlength=nodes)
    at = np.arange(len(row)) - (np.cumsum(count) - count)[row]  # which of its node's words each one is
    words, values = np.zeros((nodes, count.max()), np.int32), np.zeros((nodes, count.max()), np.float32)
    words[row, at], values[row, at] = column, 1.0 / count[row]
    self_loops = np.repeat(np.arange(nodes)[:, None], 2, axis=1)
    edges = np.unique(np.concatenate([self_loops, arrays["edges"]]) if neighbors else self_loops, axis=0).astype(
        np.int32
    )
    splits = {name: arrays[name].astype(np.int32) for name in SPLITS}
    label = arrays["label"].astype(np.int32)
    return Graph(words, values, edges, label, splits, features, int(label.max()) + 1)


# --- training


def l2_penalty(params) -> jax.Array:
    """Return half the sum of all squared parameters, including biases as in the authors' code.

    >>> l2_penalty({"kernel": jnp.array([1.0, 2.0]), "bias": jnp.array([3.0])}).item()
    7.0
    """
    return 0.5 * sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(params))


class NodeTask(Task):
    """A classifier of nodes; `data` is a `Graph`, and a batch is the whole graph."""

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

    def describe(self) -> dict:
        graph = self.data
        sizes = {
            "nodes": len(graph.label),
            "edges": len(graph.edges),
            "words": graph.features,
            "classes": graph.classes,
        }
        return sizes | {f"{name}_nodes": len(nodes) for name, nodes in graph.splits.items()}

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
        guess = map_batches(self.score_nodes, params, self.examples[0], 1)["guess"][0, test]
        counts = count_confusions(self.data.label[test], guess, len(names))
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
        probabilities = map_batches(self.attention, params, self.examples[0], 1)["probabilities"][0, nodes]
        return [f"class {row.argmax()} {row.max():.3f}" for row in probabilities]

    def attention_maps(self, params, texts: list[str]) -> tuple[AttentionRecord, ...]:
        """Return the hidden layer's attention of these nodes, or of a few test nodes."""
        test, edges = self.data.splits["test"], self.data.edges
        most = test[np.argsort(-np.bincount(edges[:, 0])[test], kind="stable")[:SHOWN]]
        outputs = map_batches(self.attention, params, self.examples[0], 1)
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


def cross_entropy(logits, label):
    """Return the cross-entropy in nats [...] of logits [..., C] and labels [...]."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), label[..., None], axis=-1)[..., 0]
