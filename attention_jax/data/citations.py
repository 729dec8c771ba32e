"""Citation networks: graphs of papers with bag-of-words features, citation edges and subject labels.

A file is an .npz with these arrays, as of Cora in the split of Yang et al. 2016 ("Planetoid"):

| array | shape | what it holds |
|---|---|---|
| feature_row, feature_column | [M] | the words: paper feature_row[i] has word feature_column[i] |
| shape | [2] | how many papers N and how many words F there are |
| label | [N] | the subject of each paper, from 0 |
| edges | [E, 2] | (a, b): paper a attends to paper b; a link in both directions is there twice |
| train, valid, test | [n] | the numbers of the papers of each split |
"""

import zipfile
from typing import NamedTuple

import numpy as np

from attention_jax import config as settings
from attention_jax.errors import InputError

SPLITS = ("train", "valid", "test")
ARRAYS = ("feature_row", "feature_column", "shape", "label", "edges", *SPLITS)
SUBJECTS, WORDS = 7, 70
"""Number of classes and vocabulary size of a generated graph."""


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


def load(options: settings.Citations) -> Graph:
    """Load the graph from the file in `options`, or generate one."""
    if not options.path and not options.num_nodes:
        raise InputError(
            "--data.path must be a cora.npz (attention_jax/data/citations.py says what is in it), and none was given; "
            "--data.num-nodes 200 generates a graph instead"
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
