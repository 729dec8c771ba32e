"""Reads and writes model weights in files, under the names of this package or of other libraries."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from attention_jax import config as configs
from attention_jax.errors import InputError
from attention_jax.weights import (
    bert_names,
    gemma_names,
    gpt2_names,
    llama_names,
    marian_names,
    qwen_names,
    t5_names,
    tensors,
    vit_names,
)
from attention_jax.weights.facts import Facts, class_function
from attention_jax.weights.layouts import check, expanded, parts, shape, solved, to_ours, to_theirs
from attention_jax.weights.naming import Naming

OWN = "own"
HEADS = ("head/bias", "trunk/head/bias")
"""The arrays that are as long as a classifier has classes."""
NAME_TABLES = (vit_names, marian_names, t5_names, gpt2_names, bert_names, llama_names, qwen_names, gemma_names)
NAMINGS: dict[str, Naming] = {name: naming for family in NAME_TABLES for name, naming in family.NAMINGS.items()}


class Weights(NamedTuple):
    """The options of a model and its parameters, {"module/array": float32 array}."""

    options: configs.ModelOptions
    arrays: dict[str, np.ndarray]
    source: str
    """Description of the origin and the note, for messages."""
    note: str = ""
    """What had to be assumed, and what was not read in a config.json."""
    function: str = "softmax"
    """What makes the logits of a classifier its answer: softmax, sigmoid or none (`facts.class_function`)."""
    data: Any = None
    """The vocabularies or class names of the run that they are of, as `saved_run` stores them."""


def flat(params) -> dict[str, np.ndarray]:
    """Flatten a nested dict of arrays to {path: array}.

    >>> flat({"a": {"b": np.zeros(2), "c": np.zeros(3)}}).keys()
    dict_keys(['a/b', 'a/c'])
    """
    leaves = jax.tree.leaves_with_path(params)
    return {"/".join(str(key.key) for key in path): leaf for path, leaf in leaves}


def paths_of_layers(path: str, shape: tuple[int, ...]) -> list[str]:
    """The paths of single layers of which the array of this path is a stack (`scan_layers`); none if it is not a stack.

    >>> paths_of_layers("decoder/layers_3/w", (2, 5)), paths_of_layers("decoder/layer_3/w", (5,))
    (['decoder/layer_3/w', 'decoder/layer_4/w'], [])
    """
    found = re.fullmatch(r"(.*/|)layers_(\d+)(/.*)", path)
    return [f"{found[1]}layer_{int(found[2]) + i}{found[3]}" for i in range(shape[0])] if found else []


def unstacked(arrays: dict) -> dict:
    """The arrays with one for each layer in the place of those that a scan has stacked.

    >>> list(unstacked({"decoder/layers_3/w": np.ones((2, 5)), "b": 1}))
    ['decoder/layer_3/w', 'decoder/layer_4/w', 'b']
    """
    found = {}
    for path, array in arrays.items():
        if names := paths_of_layers(path, np.shape(array)):
            flip = np.transpose if path.endswith("/kernel") else np.asarray  # models/layer_stack.py: flip_kernels
            found |= {name: flip(x) for name, x in zip(names, array, strict=True)}
        else:
            found[path] = array
    return found


def nested(arrays: dict) -> dict:
    """Rebuild the nested dict from {path: array}: the inverse of `flat`.

    >>> nested({"a/b": 1, "a/c": 2})
    {'a': {'b': 1, 'c': 2}}
    """
    tree: dict = {}
    for path, array in arrays.items():
        *above, name = path.split("/")
        place = tree
        for key in above:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise InputError(f"the names of arrays must be a tree; {path} lies below another array")
        place[name] = array
    return tree


def module_of(weights: Weights):
    """Return the Flax module whose parameters are `nested(weights.arrays)`: a ViT, a Marian encoder-decoder or a
    language model."""
    naming = next((naming for naming in NAMINGS.values() if naming.kind is type(weights.options)), None)
    if naming is None:
        raise InputError(f"the sizes of a {configs.model_name(weights.options)} depend on its data: load a run of it")
    return naming.module(weights.options, weights.arrays)


def read(path: Path | str) -> Weights:
    """Read weights from a file or directory and convert them to this package's names; the format is detected.

    Raises InputError for a damaged file, an unsupported architecture, and a file that could execute code (a pickle).
    """
    weights = opened(path)
    return weights._replace(arrays={name: np.asarray(array) for name, array in weights.arrays.items()})


def opened(path: Path | str) -> Weights:
    """`read`, with arrays that are read when they are used (`tensors.Stored`), as far as the format allows it.

    Raises InputError for a damaged file, an unsupported architecture, and a file that could execute code (a pickle).
    """
    path = Path(path)
    held = tensors.read(path)
    naming = recognized(path, held)
    if naming == OWN:
        return Weights(own_options(path, held), held.arrays, str(path), function=held.said.get("function", "softmax"))
    kind, facts = NAMINGS[naming], Facts(held.config)
    if facts.values.get("quantization_config"):
        raise InputError(f"{path}: quantized safetensors files are not read: give one in bfloat16, or a .gguf file")
    try:
        theirs = kind.prepare(without_copies(kind, renamed_to(kind.spelled, held.arrays)), facts)
        options = kind.completed(kind.options(theirs, facts), path if path.is_dir() else path.parent)
        if options.num_heads < 1 or min(kind.known(options).values()) < 0:
            raise ValueError(f"{options.num_heads} heads")
        heads = [theirs[row.theirs] for row in kind.table if row.ours in HEADS and row.theirs in theirs]
        function = class_function(facts, len(heads[0])) if heads else "softmax"
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, ZeroDivisionError) as error:
        raise InputError(f"{path} is not {naming}'s: {type(error).__name__} {error}") from error
    ours = kind.finish(options, facts, translated(path, kind, options, theirs))
    note = facts.said()
    return Weights(options, ours, f"{path} ({naming}{note})", note, function)


def unwrapped(name: str) -> str:
    """Remove what `torch.compile` and `DataParallel` add to the names of tensors.

    >>> unwrapped("_orig_mod.module.h.0.ln_1.bias"), unwrapped("vit._orig_mod.layernorm.bias")
    ('h.0.ln_1.bias', 'vit.layernorm.bias')
    """
    return re.sub(r"(^|(?<=\.))(_orig_mod|module)\.", "", name)


def renamed_to(spelled: Callable[[str], str], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Spell all names as `spelled` does; InputError if two different tensors would get one name."""
    found: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        name = spelled(unwrapped(name))
        if name in found and not np.array_equal(found[name], array):
            raise InputError(f"two different tensors are both called {name}, once with a prefix: leave one of them out")
        found[name] = array
    return found


def without_copies(kind: Naming, theirs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Leave out the tensors that our model does not hold; InputError for one that is not what our model computes."""
    kept = {}
    for name, array in theirs.items():
        rule = next((rule for pattern, rule in kind.ignored.items() if re.fullmatch(pattern, name)), None)
        if rule is None:
            kept[name] = array
            continue
        wanted = rule(theirs, array)
        if wanted is not None and not np.array_equal(wanted, array):
            raise InputError(f"{name} must be tied to the tensor or function that it copies, and differs from it")
    return kept


def recognized(path: Path, held: tensors.Tensors) -> str:
    """Detect the naming scheme of tensors; InputError if it is none that is supported."""
    if held.said:
        return OWN
    kind = held.config.get("model_type")
    supported = [one for naming in NAMINGS.values() for one in naming.model_types]
    for name, naming in NAMINGS.items():
        fits = kind is None or kind in (naming.model_types or (kind,))
        if fits and naming.mark in {naming.spelled(unwrapped(tensor)) for tensor in held.arrays}:
            return name
    if kind is not None and kind not in supported:
        raise InputError(f"{path}: model_type {kind} is not supported; supported: {', '.join(supported)}")
    first = ", ".join(sorted(held.arrays)[:3])
    raise InputError(
        f"{path} must have the names of {OWN}, {', '.join(NAMINGS)}; it has {len(held.arrays)} others ({first}, ...)"
    )


def translated(path: Path, kind: Naming, options, theirs: dict) -> dict[str, np.ndarray]:
    """Convert arrays to this package's names; InputError if one is missing or shapes contradict each other."""
    rows = expanded(kind.table, theirs)
    there = [(row.their_layout, theirs[row.theirs].shape) for row in rows if row.theirs in theirs]
    sizes = solved(there, kind.known(options))
    for prefix in kind.optional:
        optional = [row for row in rows if row.ours.startswith(prefix)]
        if not any(row.theirs in theirs for row in optional):
            rows = [row for row in rows if row not in optional]
    sizes |= {letter: 0 for row in rows for letter in re.findall(r"[a-z]", row.their_layout) if letter not in sizes}
    rows = [row for row in rows if row.theirs in theirs or wanted(row.ours, options)]
    found = {name: array.shape for name, array in theirs.items()}
    check(str(path), {row.theirs: shape(row.their_layout, sizes) for row in rows}, found)
    for row in rows:
        if (stored := getattr(theirs[row.theirs], "kind", "F32")) not in tensors.FLOATS:
            raise InputError(
                f"{path}: {row.theirs} must be of type {', '.join(tensors.FLOATS)}, is {stored}: quantized weights are "
                "read from .gguf files only"
            )
    return to_ours(rows, theirs, sizes)


def wanted(ours: str, options) -> bool:
    """Whether a model with these options has the parameter named `ours`."""
    if "/pre_logits/" in ours:
        return options.pre_logits_dim > 0
    if ours == "registers":
        return options.num_registers > 0
    if ours == "kernel":
        return options.tied_embeddings in (False, "none", "inputs")
    return getattr(options, "use_bias", True) or not re.search(r"attention/\S+/bias$", ours)


def own_options(path: Path, held: tensors.Tensors) -> configs.ModelOptions:
    """Parse the model options in the metadata that this package wrote; they cannot trigger an import."""
    values = held.said.get("model") if isinstance(held.said, dict) else None
    try:
        if not isinstance(values, dict) or any(":" in str(value) for value in values.values()):
            raise ValueError("what it says of its model names something outside this package")
        options = configs.from_json(values)
        if not isinstance(options, configs.ModelOptions):
            raise ValueError(f"a {type(options).__name__} is no model")
        if any(value > len(held.arrays) for name, value in vars(options).items() if name.endswith("layers")):
            raise ValueError("more layers than arrays")
        return options
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path} must say which model its arrays are of, as `launch.py export` writes it; it does not "
            f"({' '.join(str(error).split())[:160]})"
        ) from error


def write(weights: Weights, directory: Path, form: str, naming: str = OWN) -> str:
    """Write model.safetensors or model.npz, and config.json, to a new directory, atomically; return a one-line summary.

    Raises InputError if the library of `naming` has no such model.
    """
    arrays, said, beside, note = {k: np.asarray(v) for k, v in weights.arrays.items()}, {}, {}, ""
    if naming == OWN:
        said = {"model": configs.to_json(weights.options)}
        said |= {"function": weights.function} if weights.function != "softmax" else {}
        beside = {"config.json": said}
    else:
        kind = NAMINGS.get(naming)
        fits = lambda kind: isinstance(weights.options, kind.kind) and not kind.read_only
        if kind is None or not fits(kind):
            having = [name for name, kind in NAMINGS.items() if fits(kind)]
            raise InputError(
                f"the weights of a {configs.model_name(weights.options)} can be written with --naming "
                f"{', '.join([OWN, *having])}; got {naming}"
            )
        if lacks := kind.lacking(weights.options):
            raise InputError(f"{naming} has no model with {lacks}: export with --naming {OWN}")
        call = weights.options, arrays, weights.data
        beside = {"config.json": kind.config(*call)} | kind.beside(*call)
        if weights.function != "softmax":
            kinds = {"sigmoid": "multi_label_classification", "none": "regression"}
            beside["config.json"]["problem_type"] = kinds[weights.function]
        note, arrays = kind.note(weights.options), renamed(kind, weights)

    def fill(place: Path):
        tensors.write(place / f"model{tensors.KINDS[form]}", arrays, said)
        for name, content in beside.items():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    make_directory(directory, fill)
    size = sum(file.stat().st_size for file in directory.iterdir())
    count = sum(array.size for array in arrays.values())
    return f"{directory}: {len(arrays)} tensors, {count:,} numbers, {size / 1e6:.1f} MB, named as {naming}{note}"


def renamed(kind: Naming, weights: Weights) -> dict[str, np.ndarray]:
    """Convert arrays to the names and layouts of another library; InputError for arrays that it does not have."""
    ours = kind.undo(weights.options, weights.arrays)
    rows = [row for row in expanded(kind.table, ours) if set(parts(row.ours)) <= ours.keys()]
    left = sorted(ours.keys() - {name for row in rows for name in parts(row.ours)})
    if left:
        raise InputError(f"the other library has no place for {len(left)} of our arrays ({', '.join(left[:3])})")
    stacked = lambda row: np.shape(ours[row.ours]) if row.ours in ours else ()
    sizes = solved([(row.our_layout, stacked(row)) for row in rows], kind.known(weights.options))
    return to_theirs(rows, ours, sizes)


def make_directory(directory: Path, fill: Callable[[Path], None]):
    """Create a directory atomically: `fill` writes to a temporary directory, which is then renamed."""
    if directory.exists():
        raise InputError(f"--out must be a directory that does not exist yet; {directory} does")
    part = directory.with_name(directory.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        fill(part)
        os.replace(part, directory)
    except (PermissionError, NotADirectoryError, FileExistsError, FileNotFoundError) as error:
        raise InputError(f"{directory} cannot be written ({error.strerror}); give another --out DIR") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
