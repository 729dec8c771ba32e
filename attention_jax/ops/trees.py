"""Dataclasses as pytrees: scores, masks, biases and other arguments of programs that are not arrays.

`jax.tree_util.register_dataclass` is not sufficient. The tree structures of two classes that it has registered are
equal if both have the same number of fields: `jax.tree.structure(Gaussian(1.0)) == jax.tree.structure(Cosine(1.0))` was
true (jax 0.10.2 and 0.12.0.1), with different hashes. Compiled programs are cached by the structure of their
arguments, so on a hash collision one score was computed by the program of another.
"""

import dataclasses
from typing import TypeVar

import jax

Class = TypeVar("Class", bound=type)


def as_tree(rule):
    """Return `rule` as a pytree: a plain function becomes one without children, None stays None.

    >>> jax.tree.leaves(as_tree(abs)), as_tree(abs)(-2)
    ([], 2)
    """
    return jax.tree_util.Partial(rule) if callable(rule) and jax.tree_util.all_leaves([rule]) else rule


def children(cls: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields that are pytree children, that is, not marked static."""
    return tuple(field.name for field in dataclasses.fields(cls) if not field.metadata.get("static"))


def pytree(cls: Class) -> Class:
    """Register a dataclass as a pytree whose children are its fields, in their order.

    Fields with `metadata={"static": True}` are not children but part of the tree structure; their values must be
    hashable. Tree structures of different classes differ.

    >>> @pytree
    ... @dataclasses.dataclass(frozen=True)
    ... class Line:
    ...     slope: float
    ...     name: str = dataclasses.field(default="line", metadata={"static": True})
    >>> jax.tree.map(lambda x: 2 * x, Line(3.0))
    Line(slope=6.0, name='line')
    """
    names = children(cls)
    static = tuple(field.name for field in dataclasses.fields(cls) if field.name not in names)

    def known(tree):
        return cls, tuple(getattr(tree, name) for name in static)

    def flatten(tree):
        return tuple(getattr(tree, name) for name in names), known(tree)

    def flatten_with_keys(tree):
        return tuple((jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in names), known(tree)

    def unflatten(known, children):
        tree = object.__new__(cls)  # JAX's placeholders for arrays need not pass the checks of __init__
        for name, value in (*zip(names, children), *zip(static, known[1])):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
