"""Dataclasses as pytrees: scores, masks, biases, and what else a program is handed that is not an array.

`jax.tree_util.register_dataclass` does not do. The structures of two classes that it has registered are equal where
both have as many fields: `jax.tree.structure(Gaussian(1.0)) == jax.tree.structure(Cosine(1.0))` was true (jax 0.10.2
and 0.12.0.1), with different hashes. A compiled program is found by the structure of its arguments, so that now and
then, where hashes met, one score was computed by the program of another.
"""

import dataclasses
from typing import TypeVar

import jax

Class = TypeVar("Class", bound=type)


def as_tree(rule):
    """`rule`; a plain function as a pytree without children. None stays None.

    >>> jax.tree.leaves(as_tree(abs)), as_tree(abs)(-2)
    ([], 2)
    """
    return jax.tree_util.Partial(rule) if callable(rule) and jax.tree_util.all_leaves([rule]) else rule


def children(cls: type) -> tuple[str, ...]:
    """The names of a dataclass's fields that are children of its pytrees: those that are not marked static."""
    return tuple(field.name for field in dataclasses.fields(cls) if not field.metadata.get("static"))


def pytree(cls: Class) -> Class:
    """Register a dataclass as a pytree whose children are its fields, in their order; a structure knows its class.

    Fields with `metadata={"static": True}` are no children: they are hashable, and part of the structure.

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
        tree = object.__new__(cls)  # what JAX puts in place of arrays need not pass the checks of __init__
        for name, value in (*zip(names, children), *zip(static, known[1])):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
