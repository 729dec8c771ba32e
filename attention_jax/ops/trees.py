"""Dataclasses as pytrees: scores, masks, biases and other arguments of programs that are not arrays.

`jax.tree_util.register_dataclass` is not sufficient. The tree structures of two classes that it has registered are
equal if both have the same number of fields: `jax.tree.structure(Gaussian(1.0)) == jax.tree.structure(Cosine(1.0))` was
true (jax 0.10.2 and 0.12.0.1), with different hashes. Compiled programs are cached by the structure of their
arguments, so on a hash collision one score was computed by the program of another.
"""

import dataclasses
from typing import TypeVar

import jax

from attention_jax import InputError

Class = TypeVar("Class", bound=type)


def as_tree(rule):
    """Return `rule` as a pytree: a plain function becomes one without children, None stays None.

    Raises InputError for a rule of a class that is not registered (`check_registered`).

    >>> jax.tree.leaves(as_tree(abs)), as_tree(abs)(-2)
    ([], 2)
    """
    rule = check_registered(rule)
    return jax.tree_util.Partial(rule) if callable(rule) and jax.tree_util.all_leaves([rule]) else rule


def check_registered(rule):
    """Return `rule`; InputError if it is, or holds, an object of parameters that JAX does not see: an instance of a
    dataclass without `pytree`, or of another class, with arrays as its attributes."""
    for leaf in jax.tree.leaves(rule):
        held = getattr(leaf, "__dict__", {}).values() if callable(leaf) else ()
        if dataclasses.is_dataclass(leaf) or any(isinstance(value, jax.Array) for value in held):
            raise InputError(
                f"{type(leaf).__name__} must be a pytree, or its parameters are hidden from JAX: write @pytree above "
                "@dataclass(frozen=True)"
            )
    return rule


def is_registered(cls: type) -> bool:
    """Whether the objects of a class are pytrees with children.

    >>> is_registered(tuple), is_registered(str)
    (True, False)
    """
    return not jax.tree_util.all_leaves([cls.__new__(cls)])


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
