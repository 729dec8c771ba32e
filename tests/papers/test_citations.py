"""Citation networks: a tiny file that is written here, what is refused, and Cora where it is at hand."""

from pathlib import Path

import numpy as np
import pytest

from attention_jax.errors import InputError
from experiments.papers.graph_attention import load
from experiments.papers.options import Citations

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "graphs" / "cora.npz"
TINY = {
    "feature_row": np.array([2, 0, 0, 1]),
    "feature_column": np.array([3, 4, 1, 0]),
    "shape": np.array([4, 5]),
    "label": np.array([1, 0, 2, 1], np.int8),
    "edges": np.array([[2, 0], [0, 2], [0, 1], [2, 0]]),
    "train": np.array([0]),
    "valid": np.array([1]),
    "test": np.array([3, 2]),
}


def write_file(path, **changes):
    np.savez(path, **{name: array for name, array in (TINY | changes).items() if array is not None})
    return Citations(str(path))


def test_a_tiny_file_by_hand(tmp_path):
    graph = load(write_file(tmp_path / "tiny.npz"))
    assert graph.words.tolist() == [[1, 4], [0, 0], [3, 0], [0, 0]]
    assert graph.values.tolist() == [[0.5, 0.5], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]  # node 3 has no words
    assert graph.edges.tolist() == [[0, 0], [0, 1], [0, 2], [1, 1], [2, 0], [2, 2], [3, 3]]
    assert graph.label.tolist() == [1, 0, 2, 1] and (graph.features, graph.classes) == (5, 3)
    assert {name: nodes.tolist() for name, nodes in graph.splits.items()} == {
        "train": [0],
        "valid": [1],
        "test": [3, 2],
    }


def test_without_neighbors_each_node_has_itself(tmp_path):
    options = write_file(tmp_path / "tiny.npz")
    graph = load(Citations(options.path, neighbors=False))
    assert graph.edges.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": None}, "edges"),
        ({"edges": np.array([[0, 4]])}, "edges .* 0 to 3"),
        ({"feature_column": np.array([3, 5, 1, 0])}, "feature_column .* 0 to 4"),
        ({"valid": np.array([-1])}, "valid .* 0 to 3"),
        ({"test": np.zeros(0, int)}, "test"),
        ({"label": np.array([0, 1])}, "label .* 4"),
        ({"train": np.array([0, 1])}, "train, valid and test"),
    ],
)
def test_what_is_no_citation_network_is_one_line(changes, message, tmp_path):
    with pytest.raises(InputError, match=message) as error:
        load(write_file(tmp_path / "tiny.npz", **changes))
    assert "\n" not in str(error.value)


def test_a_file_is_asked_for(tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    np.save(tmp_path / "one.npy", np.arange(3))
    for path in ("", tmp_path / "absent.npz", tmp_path / "text.npz", tmp_path / "one.npy", tmp_path):
        with pytest.raises(InputError, match="--data.path must be a cora.npz"):
            load(Citations(str(path)))
    with pytest.raises(InputError, match="--data.num-nodes must be 0 or at least 70"):
        load(Citations(num_nodes=10))


def test_a_generated_graph_links_papers_of_one_subject():
    graph = load(Citations(num_nodes=140))
    links = graph.edges[graph.edges[:, 0] != graph.edges[:, 1]]
    assert {(a, b) for a, b in links.tolist()} == {(b, a) for a, b in links.tolist()}
    assert (graph.label[links[:, 0]] == graph.label[links[:, 1]]).mean() > 0.5
    assert sum(map(len, graph.splits.values())) == 140 and len(graph.label) == 140


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published file is not beside this checkout")
def test_cora_is_as_published():
    """Velickovic et al. 2018, table 1: nodes, features, classes, 140, 500 and 1,000 nodes; 20 a class to train on."""
    graph = load(Citations(str(PUBLISHED)))
    assert (len(graph.label), graph.features, graph.classes) == (2708, 1433, 7)
    assert {name: len(nodes) for name, nodes in graph.splits.items()} == {"train": 140, "valid": 500, "test": 1000}
    assert np.bincount(graph.label[graph.splits["train"]]).tolist() == [20] * 7
    assert len(graph.edges) == 10_556 + 2_708
    np.testing.assert_allclose(graph.values.sum(1), 1.0, rtol=1e-5)
