"""Dataclasses as pytrees: scores, masks, biases and other arguments of programs that are not arrays.

`jax.tree_util.register_dataclass` is not sufficient. The tree structures of two classes that it has registered are
equal if both have the same number of fields: `jax.tree.structure(Gaussian(1.0)) == jax.tree.structure(Cosine(1.0))` was
true (jax 0.10.2 and 0.12.0.1), with different hashes. Compiled programs are cached by the structure of their
arguments, so on a hash collision one score was computed by the program of another.

`as_tree` also makes pytrees of plain functions, with the arrays that they read from the functions around them. Neither
`jax.closure_convert` nor `jax.make_jaxpr` can, which are programs of one trace:

1. One function is called on blocks, edges, the whole and one decoded row; such a program has one block's shape.
2. Integers that a function reads, such as lengths, are mapped by `vmap`; `closure_convert` hoists only floating arrays.
3. A function may call compiled ones that read traced arrays. `_copy` goes into these and drops their `jit`, since a
   compiled program holds its arrays.
4. No traced array is kept in static data, and a call needs no trace to know whether its rule is that of the last call.
"""

import contextlib
import dataclasses
import functools
import inspect
import operator
import types
import weakref
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.errors import InputError

Class = TypeVar("Class", bound=type)


def as_tree(rule):
    """Return `rule` as a pytree whose leaves are arrays and numbers.

    * `functools.partial`: its function and arguments are children; a new Python number is compiled anew.
    * a method of a pytree: a partial of it, with the object as its first argument.
    * a plain function: a `Closure` whose leaves are the traced arrays that it reads, if it reads variables.
    * a pytree with other leaves (the activation of an Equinox module): these are kept aside, in `WithConstants`.
    * any other pytree, and None: itself.

    Raises InputError for a rule of a class that is not registered (`check_registered`).

    >>> jax.tree.leaves(as_tree(abs)), as_tree(abs)(-2)
    ([], 2)
    """
    check_registered(rule)
    if isinstance(rule, functools.partial):  # jax.tree_util.Partial, too
        return _tree_of_partial(rule)
    if _is_tree_method(rule):
        return _tree_of_partial(jax.tree_util.Partial(rule))
    if is_leaf(rule) and callable(rule):
        return _close(rule) if _reads_variables(rule) or _has_state(rule) else jax.tree_util.Partial(rule)
    return _tree_of_leaves(rule, is_number)


def _tree_of_partial(rule: functools.partial):
    """The tree of a function and its arguments, of which the first may be the object of a method."""
    # the numbers of Python's own partial may be what a `range` needs
    is_child = (lambda leaf: hasattr(leaf, "dtype")) if is_leaf(rule) else is_number
    # a method is its function with the object as first argument: then the leaves of the object are children
    func, owner = (rule.func.__func__, [rule.func.__self__]) if _is_tree_method(rule.func) else (rule.func, [])
    function = as_tree(func)
    # what a Partial calls is static, and a Closure has arrays: it is the first argument, of a function without any
    bound = (Closure.__call__, function) if isinstance(function, Closure) else (func,)
    return _tree_of_leaves(jax.tree_util.Partial(*bound, *owner, *rule.args, **rule.keywords), is_child)


def _tree_of_leaves(rule, is_child: Callable):
    """A pytree itself if all its leaves are children, functions that read traced arrays included; else with the others
    as constants."""
    # a function among the leaves is a child if it reads a traced array, else a constant like a string
    rule = jax.tree.map(_close_if_traced, rule)
    leaves, structure = jax.tree.flatten(rule, is_leaf=lambda node: isinstance(node, Closure))
    constants = tuple(None if isinstance(x, Closure) or is_child(x) else Constant(x) for x in leaves)
    if not any(constants):
        return with_arrays(rule)
    return WithConstants([x for x, constant in zip(leaves, constants) if constant is None], structure, constants)


def _is_tree_method(rule) -> bool:
    return inspect.ismethod(rule) and not is_leaf(rule.__self__)


def with_arrays(rule):
    """`rule` with NumPy's arrays as JAX's. Raises InputError for leaves that are neither arrays nor numbers."""
    check_registered(rule)
    bad = [x for x in jax.tree.leaves(rule) if not is_number(x)]
    if bad:
        raise InputError(
            f"{type(rule).__name__} must have leaves that are arrays or numbers, got a {type(bad[0]).__name__}: mark "
            'its field static, field(metadata={"static": True})'
        )
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, rule)


def check_registered(rule) -> None:
    """Raise InputError if a rule is, or holds, an object of parameters whose class is no pytree: JAX would see none of
    them. It is one of a dataclass or of a class that inherits from this package's, or one with arrays as attributes,
    if only of a method of it."""
    for leaf in jax.tree.leaves(rule):
        owner = getattr(leaf, "__self__", leaf)  # of a bound method; of a built-in function, its module
        if isinstance(owner, jax.Array | np.ndarray | types.ModuleType) or inspect.isclass(leaf) or not is_leaf(owner):
            continue
        is_package_class = any(map(is_of_package, type(leaf).__mro__))
        has_arrays = any(isinstance(x, jax.Array | np.ndarray) for x in getattr(owner, "__dict__", {}).values())
        if is_package_class or has_arrays or dataclasses.is_dataclass(leaf):
            raise InputError(
                f"{type(owner).__name__} must be a pytree, or its parameters are hidden from JAX: write @pytree above "
                "its @dataclass(frozen=True)"
            )


def is_of_package(item) -> bool:
    """Whether a class or function is one of this package.

    >>> is_of_package(InputError), is_of_package(jnp.tanh)
    (True, False)
    """
    return (getattr(item, "__module__", None) or "").startswith("attention_jax.")


def describes_call(rule, form: str) -> bool:
    """Whether a method of a rule, such as `terms`, describes its `__call__`: a class that overrides only `__call__`
    inherits what is true of another function."""
    place = lambda name: next((i for i, base in enumerate(type(rule).__mro__) if name in vars(base)), None)
    return place(form) is not None and place(form) <= place("__call__")


def name_of(rule) -> str:
    """The name of the class of a rule, or of a function in a Partial."""
    if isinstance(rule, WithConstants):
        return name_of(rule.restore())
    if isinstance(rule, jax.tree_util.Partial) and rule.func is Closure.__call__:
        return name_of(rule.args[0])
    return getattr(getattr(rule, "func", type(rule)), "__name__", type(rule).__name__)


def outline(rule) -> tuple:
    """The structure of a rule, and the shapes and types of its leaves: hashable, and known where they are traced."""
    leaves, structure = jax.tree.flatten(rule)
    return structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def example_of(structure, leaves):
    """A rule of this `outline` to try: parameters are 0.7 in float32, integers 1.

    >>> example_of(*outline((2.0, 5)))
    (Array(0.7, dtype=float32), Array(1, dtype=int32))
    """

    def example(shape, dtype):
        is_float = jnp.issubdtype(dtype, jnp.floating)
        return jnp.full(shape, 0.7 if is_float else 1, jnp.float32 if is_float else dtype)

    return jax.tree.unflatten(structure, [example(*leaf) for leaf in leaves])


@contextlib.contextmanager
def on_examples():
    """A context in which rules are computed on examples, whatever transformation or check of JAX is around."""
    with jax.core.eval_context(), jax.transfer_guard("allow"), jax.debug_nans(False):
        yield


def shape_error(rule, *arguments) -> str:
    """The message of the error that a rule raises for arguments of these shapes, whatever the numbers; empty if it
    raises none, asks for numbers, or needs the axes of a transformation around the call.

    >>> shape_error(jnp.add, jnp.ones(2), jnp.ones(3))
    'TypeError: add got incompatible shapes for broadcasting: (2,), (3,).'
    >>> shape_error(lambda x: 1 if x > 0 else 2, jnp.ones(()))
    ''
    """
    try:
        jax.eval_shape(lambda rule, *arguments: rule(*arguments), as_tree(rule), *arguments)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError, NameError):
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def is_leaf(rule) -> bool:
    """Whether JAX sees no structure in a rule: a plain function, or an object whose class is not a pytree."""
    return jax.tree_util.all_leaves([rule])


def is_number(leaf) -> bool:
    """Whether a leaf is an array or a number.

    >>> is_number(1.0), is_number(jnp.ones(2)), is_number(abs), is_number("relu")
    (True, True, False, False)
    """
    return isinstance(leaf, bool | int | float | complex) or hasattr(leaf, "dtype")


def is_registered(cls: type) -> bool:
    """Whether the objects of a class are pytrees with children.

    >>> is_registered(tuple), is_registered(str)
    (True, False)
    """
    return not jax.tree_util.all_leaves([cls.__new__(cls)])


def child_names(cls: type) -> tuple[str, ...]:
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
    names = child_names(cls)
    static = tuple(field.name for field in dataclasses.fields(cls) if field.name not in names)

    def aux_data(tree):
        return cls, tuple(getattr(tree, name) for name in static)

    def flatten(tree):
        return tuple(getattr(tree, name) for name in names), aux_data(tree)

    def flatten_with_keys(tree):
        return tuple((jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in names), aux_data(tree)

    def unflatten(aux, children):
        tree = object.__new__(cls)  # JAX's placeholders for arrays need not pass the checks of __init__
        for name, value in (*zip(names, children), *zip(static, aux[1])):
            object.__setattr__(tree, name, value)
        return tree

    # the class is part of the structure, so that structures of different classes differ
    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    if getattr(getattr(cls.__eq__, "__code__", None), "co_filename", None) == "<string>":  # that of the dataclass
        cls.__eq__, cls.__hash__ = _equal, _hash
    return cls


def _equal(self, other):
    """Whether two trees have one class, one structure and equal leaves: the `==` of their tuples is ambiguous where a
    leaf is an array of several numbers."""
    if type(other) is not type(self):
        return NotImplemented
    (leaves, structure), (other_leaves, other_structure) = jax.tree.flatten(self), jax.tree.flatten(other)
    return structure == other_structure and all(map(_equal_leaves, leaves, other_leaves))


def _equal_leaves(a, b):
    if a is b or isinstance(a, jax.core.Tracer) or isinstance(b, jax.core.Tracer):
        return a is b
    if not (is_number(a) and is_number(b)):
        return a == b
    return np.shape(a) == np.shape(b) and bool(np.array_equal(a, b))


def _hash(self):
    # shapes and no numbers of the leaves: equal trees have equal hashes, and traced leaves have no numbers
    leaves, structure = jax.tree.flatten(self)
    return hash((structure, tuple(np.shape(leaf) for leaf in leaves if is_number(leaf))))


class Constant:
    """A value as part of a structure: equal to itself as long as its contents are the same, and to an equal number or
    string of its type."""

    def __init__(self, value):
        self.value = value
        self.key = (type(value), contents(value))

    def __eq__(self, other):
        return isinstance(other, Constant) and self.key == other.key

    def __hash__(self):
        return hash(self.key)


def contents(value, depth: int = 3):
    """What a value is compared by, so that a change in place is seen: a number or string itself, the bytes of a NumPy
    array, the items of a container, the attributes of an object, to this `depth`; else its identity.

    >>> x = np.zeros(2)
    >>> before = contents([x])
    >>> x[0] = 1
    >>> contents([x]) == before, contents(abs) == contents(abs)
    (False, True)
    """
    if isinstance(value, bool | int | float | complex | str | jax.tree_util.PyTreeDef | types.NoneType):
        return repr(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.shape, value.dtype.str, value.tobytes()
    if inspect.ismethod(value):
        return value.__func__, contents(value.__self__, depth)
    # arrays of JAX, modules, classes and functions do not change; what is nested deeper is compared by identity
    if depth == 0 or isinstance(value, jax.Array | types.ModuleType | types.FunctionType | type):
        return id(value)
    return id(value), tuple(contents(x, depth - 1) for x in _values_in(value))


def _values_in(value) -> list:
    """What `copy.copy` would give to a new object: arguments, attributes and slots, items; of one that cannot be copied
    the attributes."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    try:
        _, args, *further = value.__reduce_ex__(4)
        state, items, pairs = (*further, None, None, None)[:3]
    except Exception:  # of any type: its own `__reduce__` is called
        args, state, items, pairs = (), getattr(value, "__dict__", None), None, None
    states = state if isinstance(state, tuple) else (state,)
    mappings = [*(x.items() for x in states if isinstance(x, dict)), pairs or ()]
    values = [*args, *(x for x in states if not isinstance(x, dict)), *(items or ())]
    return values + [x for pairs in mappings for pair in pairs for x in pair]


class StaticFunction:
    """A function as static data of a pytree: equal to itself while what it captures is equal.

    `template` is the function, or a copy of it with `TRACED` in the place of each traced array, which static data must
    not keep.
    """

    def __init__(self, function, template, values):
        self.__name__, self.__module__, self.template = name_of(function), function.__module__, template
        owner, method = getattr(function, "__self__", function), getattr(function, "__func__", None)
        self.key = (weakref.ref(owner), method, *map(Constant, values))
        self.hash = hash(self.key)  # while the function is there

    def __eq__(self, other):
        return isinstance(other, StaticFunction) and self.key == other.key

    def __hash__(self):
        return self.hash


TRACED = object()


@pytree
@dataclasses.dataclass(frozen=True)
class Closure:
    """A plain function that reads variables of the functions around it: traced arrays are children, so that `grad`,
    `vmap` and `jit` reach them, all else is structure.

    >>> jax.grad(lambda slope: as_tree(lambda x: slope * x)(3.0))(2.0)
    Array(3., dtype=float32, weak_type=True)
    """

    traced: list
    func: StaticFunction = dataclasses.field(metadata={"static": True})

    def __call__(self, *args, **kwargs):
        traced = iter(self.traced)
        function = self.func.template
        if self.traced:
            function = _copy(function, lambda x: next(traced) if x is TRACED else x)
        return function(*args, **kwargs)


def _close(function) -> Closure:
    traced, values = [], []

    def hide(x):
        if isinstance(x, jax.core.Tracer):
            traced.append(x)
            x = TRACED
        values.append(x)
        # a copy, since JAX takes a NumPy array that was changed in place for the one of the last trace
        return x.copy() if isinstance(x, np.ndarray) else x

    # static data hold the function with TRACED in the place of each tracer; a call puts the children back in order
    template = _copy(function, hide) if inspect.isfunction(_without_jit(function)) else hide(function)
    return Closure(traced, StaticFunction(function, template, values))


def _close_if_traced(leaf):
    closure = _close(leaf) if _reads_variables(leaf) else None
    return closure if closure and closure.traced else leaf


def _copy(function, replace: Callable, copies: dict | None = None):
    """Copy a function, applying `replace` to everything that it captures, also through the functions that it calls;
    return the function itself if nothing changes. `copies` are those so far. What identifies it is shown to `replace`,
    too: code, globals and structures.
    """
    copies = {} if copies is None else copies
    original = _without_jit(function)
    if original in copies:
        return copies[original]
    # 1. a shell: the code with empty cells, and globals of its own if one that it reads is replaced
    cells, variables = original.__closure__ or (), _global_values(original)
    new_variables = {name: replace(value) for name, value in variables.items()}
    is_same = all(map(operator.is_, variables.values(), new_variables.values()))
    scope = original.__globals__ if is_same else original.__globals__ | new_variables
    copy = types.FunctionType(
        original.__code__, scope, original.__name__, closure=tuple(types.CellType() for _ in cells)
    )
    # 2. known before its cells are filled, so that a function that calls itself finds its copy
    copies[original] = copy
    copy.__dict__.update(original.__dict__)
    replace(original.__code__)

    def replace_leaf(leaf):
        if _reads_variables(leaf):
            return _copy(leaf, replace, copies)
        if isinstance(leaf, functools.partial):
            fields = leaf.func, leaf.args, leaf.keywords
            func, args, keywords = new_fields = replace_leaves(fields)
            return leaf if new_fields is fields else functools.partial(func, *args, **keywords)
        return replace(leaf)

    def replace_leaves(value):
        try:
            leaves, structure = jax.tree.flatten(value)
        except ValueError:  # a dictionary whose keys do not sort
            return replace(value)
        replace(structure)
        new_leaves = [replace_leaf(leaf) for leaf in leaves]
        return value if all(map(operator.is_, leaves, new_leaves)) else structure.unflatten(new_leaves)

    # 3. cells and defaults, with the leaves of trees in them replaced, and functions and partials copied like this one
    for cell, new_cell in zip(cells, copy.__closure__ or ()):
        try:
            value = cell.cell_contents
        except ValueError:  # of a variable without a value
            continue
        new_cell.cell_contents = replace_leaves(value)
        is_same = is_same and new_cell.cell_contents is value
    for name in ("__defaults__", "__kwdefaults__"):
        setattr(copy, name, replace_leaves(getattr(original, name)))
        is_same = is_same and getattr(copy, name) is getattr(original, name)
    # 4. the function itself where nothing has changed, so that it keeps its identity and its compiled programs
    if is_same:
        copies[original] = function
    return copies[original]


def _without_jit(function):
    return function.__wrapped__ if isinstance(function, JitFunction) else function


def _reads_variables(function) -> bool:
    function = _without_jit(function)
    if not inspect.isfunction(function):
        return False
    return any((function.__closure__, function.__defaults__, function.__kwdefaults__, _global_values(function)))


def _global_values(function) -> dict:
    """The global variables that a function reads, without modules, classes and functions."""
    values = {
        name: value for name in function.__code__.co_names if (value := function.__globals__.get(name)) is not None
    }
    return {name: x for name, x in values.items() if not isinstance(x, types.ModuleType) and not callable(x)}


def _has_state(rule) -> bool:
    """Whether a callable is an object with attributes, or a method of one, other than JAX's own functions."""
    owner = getattr(rule, "__self__", rule)
    is_plain = inspect.isroutine(owner) or inspect.isclass(owner) or inspect.ismodule(owner)
    return not is_plain and not type(owner).__module__.startswith("jax") and bool(getattr(owner, "__dict__", None))


JitFunction = type(jax.jit(lambda x: x))


@pytree
@dataclasses.dataclass(frozen=True)
class WithConstants:
    """A callable pytree some of whose leaves are no arrays: its arrays are children, all else is structure."""

    arrays: list  # and the closures of functions
    structure: jax.tree_util.PyTreeDef = dataclasses.field(metadata={"static": True})
    constants: tuple = dataclasses.field(metadata={"static": True})  # None where an array belongs

    def __call__(self, *args):
        return self.restore()(*args)

    def restore(self):
        """The callable pytree itself."""
        arrays = iter(self.arrays)
        leaves = [next(arrays) if constant is None else constant.value for constant in self.constants]
        return jax.tree.unflatten(self.structure, leaves)
