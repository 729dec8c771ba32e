"""What JAX asks of loops over arrays on a mesh of devices.

Inside `jax.shard_map` the type of an array names the mesh axes over which it varies, `jax.typeof(x).vma`, and the state
of a loop has to keep its type: zeros that do not vary cannot become sums that do. Where mesh axes are explicit, the
default of `jax.make_mesh`, the type names the axes over which an array is sharded, and has to be kept, too. Elsewhere
these functions return what they are given.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec


def varying(tree) -> frozenset[str]:
    """Return the mesh axes over which any array of `tree` varies.

    >>> varying((jnp.ones(2), 3.0))
    frozenset()
    """
    types = (x if hasattr(x, "manual_axis_type") else jax.typeof(x) for x in jax.tree.leaves(tree))
    kinds = (getattr(x, "manual_axis_type", None) for x in types)
    return frozenset().union(*(kind.varying for kind in kinds if kind is not None))


def vary_like(tree, operands):
    """Return `tree`, the first state of a loop over `operands`, whose arrays vary over the same mesh axes as any of
    them."""
    axes = varying(operands)

    def vary(x):
        missing = tuple(sorted(axes - varying(x)))
        return lax.pcast(jnp.asarray(x), missing, to="varying") if missing else x

    return jax.tree.map(vary, tree) if axes else tree


def vary_together(tree):
    """Return `tree` with all arrays varying over the same mesh axes. In reverse mode the cotangent of an array that did
    not vary is summed over the devices."""
    return vary_like(tree, tree)


def struct_like(like: jax.ShapeDtypeStruct, operands) -> jax.ShapeDtypeStruct:
    """Return `like`, varying over the same mesh axes as any of the operands."""
    types = [jax.typeof(x) for x in jax.tree.leaves(operands)]
    kinds = [x.manual_axis_type for x in types if varying(x)]
    return jax.ShapeDtypeStruct(like.shape, like.dtype, manual_axis_type=kinds[0]) if kinds else like


def loopable(function: Callable) -> Callable:
    """Return `function` with operands, pytrees of arrays, that vary together, and with automatic sharding inside, so
    that it may loop over them. Results are replicated over explicit mesh axes, those of `jax.vmap` excepted."""

    def run(*operands):
        operands = vary_together(operands)
        return with_automatic_axes(function, operands)(*operands)

    return run


def with_automatic_axes(function: Callable, operands) -> Callable:
    """Return `function` with automatic sharding inside, for operands on explicit mesh axes; else itself."""
    meshes = [jax.typeof(x).sharding.mesh for x in jax.tree.leaves(operands)]
    explicit = [mesh for mesh in meshes if mesh.explicit_axes]
    if not explicit:
        return function
    run = jax.sharding.auto_axes(function, out_sharding=NamedSharding(explicit[0], PartitionSpec()))
    return lambda *operands: run(*jax.tree.map(jnp.asarray, operands))


def scan(step: Callable, state, xs):
    """`jax.lax.scan(step, state, xs)` whose state may begin with zeros that do not vary over the devices; `step` uses
    no arrays but its arguments.

    >>> scan(lambda total, x: (total + x, total), 0.0, jnp.ones(3))[1].tolist()
    [0.0, 1.0, 2.0]
    """
    return loopable(partial(lax.scan, step))(state, xs)


def scan_with_closure(step: Callable, state, xs):
    """The same for a `step` that may use any arrays, such as weights.

    >>> weight = jnp.full((), 2.0)
    >>> scan_with_closure(lambda total, x: (total + weight * x, total), 0.0, jnp.ones(3))[1].tolist()
    [0.0, 2.0, 4.0]
    """
    first = lambda state: step(state, jax.tree.map(lambda x: x[0], xs))[0]
    return lax.scan(step, match_step_types(first, state, xs), xs)


def match_step_types(step: Callable, state, operands=()):
    """Return `state` with the types that the arrays of `step(state)` have: the first state of a loop over `operands`
    whose step may use any arrays. Only on a mesh is `step` traced for it."""
    meshes = [jax.typeof(x).sharding.mesh for x in jax.tree.leaves((state, operands))]
    explicit = [mesh for mesh in meshes if mesh.explicit_axes]
    if not explicit and jax.sharding.get_abstract_mesh().empty:
        return state
    if explicit:
        place = partial(jax.sharding.reshard, out_shardings=NamedSharding(explicit[0], PartitionSpec()))
        state = jax.tree.map(lambda x: place(x) if jax.typeof(x).sharding.mesh.empty else x, state)
    for _ in jax.tree.leaves(state):  # each time at least one more of them is right
        new = jax.tree.map(_cast, state, jax.eval_shape(step, state))
        if all(a is b for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True)):
            break
        state = new
    return state


def _cast(x, like):
    x = vary_like(x, like)
    sharding = like.sharding
    explicit = isinstance(sharding, NamedSharding) and sharding.mesh.explicit_axes
    return jax.sharding.reshard(x, sharding) if explicit and jax.typeof(x).sharding != sharding else x


def replicate(x: jax.Array) -> jax.Array:
    """Return `x` as a replicated array if it is sharded over explicit mesh axes."""
    mesh = jax.typeof(x).sharding.mesh
    return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec())) if mesh.explicit_axes else x
