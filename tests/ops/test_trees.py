"""A structure has to know its class: programs are found by structures."""

import copy
import itertools
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny import every_score

from attention_jax.ops import biases, masks, scores

PACKAGE = Path(__file__).parents[2] / "attention_jax"
TREES = {
    **every_score(),
    "Boxcar": scores.Boxcar(1.0),
    "Triangular": scores.Triangular(1.0),
    "Constant": scores.Constant(),
    "causal": masks.causal(),
    "lengths": masks.lengths(3),
    "ALiBi": biases.ALiBi(0.5),
    "Forget": biases.Forget(np.zeros(3, np.float32)),
}


def test_no_two_classes_have_one_structure():
    """`register_dataclass` gives all classes with as many fields equal structures, with different hashes."""
    for (name_a, a), (name_b, b) in itertools.combinations(TREES.items(), 2):
        assert type(a) is type(b) or jax.tree.structure(a) != jax.tree.structure(b), (name_a, name_b)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_tree_structure_depends_on_class_not_arrays(tree):
    leaves, structure = jax.tree.flatten(tree)
    again = jax.tree.unflatten(structure, [object() for _ in leaves])
    assert type(again) is type(tree) and jax.tree.structure(again) == structure
    assert hash(structure) == hash(jax.tree.structure(again))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    assert len(set(paths)) == len(leaves) and all(path.startswith(".") for path in paths)


def test_static_fields_are_part_of_the_structure():
    structure = lambda width: jax.tree.structure(masks.window(width))
    assert structure(3) == structure(3) != structure(4)


def test_nothing_is_registered_the_other_way():
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "trees.py"]
    assert not [path.name for path in files if "register_dataclass" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_rules_are_copied_and_pickled(tree):
    for again in (copy.deepcopy(tree), pickle.loads(pickle.dumps(tree))):
        assert type(again) is type(tree) and jax.tree.structure(again) == jax.tree.structure(tree)
        jax.tree.map(np.testing.assert_array_equal, again, tree)
