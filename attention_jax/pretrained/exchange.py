"""Reads and writes model weights in files, under the names of this package or of other libraries."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from attention_jax import config as configs
from attention_jax.errors import InputError
from attention_jax.files import check_output, temporary_file
from attention_jax.models.layer_stack import unstack_layers
from attention_jax.pretrained import (
    decoder_names,
    encoder_names,
    tensors,
    text_encoder_names,
    translator_names,
    vit_names,
)
from attention_jax.pretrained.config_json import Facts, class_function
from attention_jax.pretrained.naming import (
    Naming,
    check_shapes,
    differing_flags,
    expand_layers,
    param_paths,
    shape_of,
    solve_sizes,
    to_params,
    to_state_dict,
)

OWN = "own"
HEADS = ("head/bias", "trunk/head/bias")
"""The arrays that are as long as a classifier has classes."""
NAMINGS: dict[str, Naming] = {
    **vit_names.NAMINGS,
    **translator_names.NAMINGS,
    **decoder_names.NAMINGS,
    **encoder_names.NAMINGS,
    **text_encoder_names.NAMINGS,
}
"""{value of --naming: family}"""


class Weights(NamedTuple):
    """The options of a model and its parameters, {"module/array": float32 array}."""

    options: configs.ModelOptions
    arrays: dict[str, np.ndarray]
    source: str
    """Description of the origin and the note, for messages."""
    note: str = ""
    """What was assumed, and which entries of config.json were not read."""
    function: str = "softmax"
    """What makes the logits of a classifier its answer: softmax, sigmoid or none (`config_json.class_function`)."""
    data: Any = None
    """The vocabularies or class names of the run, as `runs.saved.store_preprocessing` stores them."""


def flat(params) -> dict[str, np.ndarray]:
    """Flatten a nested dict of arrays to {path: array}.

    >>> flat({"a": {"b": np.zeros(2), "c": np.zeros(3)}}).keys()
    dict_keys(['a/b', 'a/c'])
    """
    leaves = jax.tree.leaves_with_path(params)
    return {"/".join(str(key.key) for key in path): leaf for path, leaf in leaves}


def layer_paths(path: str, shape: tuple[int, ...]) -> list[str]:
    """The paths of the layers that are stacked in the array of this path (`scan_layers`); none if it is not a stack.

    >>> layer_paths("decoder/layers_3/w", (2, 5)), layer_paths("decoder/layer_3/w", (5,))
    (['decoder/layer_3/w', 'decoder/layer_4/w'], [])
    """
    match = re.fullmatch(r"(.*/|)layers_(\d+)(/.*)", path)
    return [f"{match[1]}layer_{int(match[2]) + i}{match[3]}" for i in range(shape[0])] if match else []


def take_array(arrays: dict, path: str, shape: tuple[int, ...], dtype=np.float32) -> np.ndarray | None:
    """Remove the array of a parameter from `arrays` and return it, or None if there is none.

    Arrays of single layers are stacked where a scan in the parameters of this `shape` has them so (`scan_layers`).

    >>> take_array({"layer_0/w": np.ones(2), "layer_1/w": np.ones(2)}, "layers_0/w", (2, 2)).shape
    (2, 2)
    """
    if path in arrays:
        return np.asarray(arrays.pop(path)).astype(dtype, copy=False)
    names, flipped = layer_paths(path, shape), path.endswith("/kernel")  # models/layer_stack.py: flip_kernels
    layer_shapes = {arrays[name].shape for name in names if name in arrays}
    if not {*names} <= arrays.keys() or len(layer_shapes) != 1:
        return None
    [layer_shape] = layer_shapes
    stack = np.empty((len(names), *(layer_shape[::-1] if flipped else layer_shape)), dtype)
    for i, name in enumerate(names):
        array = np.asarray(arrays.pop(name))
        stack[i] = array.T if flipped else array
    return stack


def from_run(params, options: configs.ModelOptions, source: str, data) -> Weights:
    """The weights of a run, in which a scan may have stacked the layers (`scan_layers`): here they are single."""
    if getattr(options, "scan_layers", False):
        params, options = unstack_layers(params), dataclasses.replace(options, scan_layers=False)
    return Weights(options, flat(params), source, data=data)


def nested(arrays: dict) -> dict:
    """Rebuild the nested dict from {path: array}: the inverse of `flat`.

    >>> nested({"a/b": 1, "a/c": 2})
    {'a': {'b': 1, 'c': 2}}
    """
    tree: dict = {}
    for path, array in arrays.items():
        *above, name = path.split("/")
        subtree = tree
        for key in above:
            subtree = subtree.setdefault(key, {})
            if not isinstance(subtree, dict):
                raise InputError(f"the names of arrays must be a tree; {path} lies below another array")
        subtree[name] = array
    return tree


def module_of(weights: Weights):
    """Return the Flax module whose parameters are `nested(weights.arrays)`: a ViT, a Marian encoder-decoder or a
    language model."""
    # all namings of one type of options build the same module
    naming = next((naming for naming in NAMINGS.values() if naming.options_type is type(weights.options)), None)
    if naming is None:
        raise InputError(f"the sizes of a {configs.model_name(weights.options)} depend on its data: load a run of it")
    return naming.build_module(weights.options, weights.arrays)


def read(path: Path | str) -> Weights:
    """Read weights from a file or directory and convert them to this package's names; the format is detected.

    Raises InputError for a damaged file, an unsupported architecture, and a file that could execute code (a pickle).
    """
    weights = open_weights(path)
    return weights._replace(arrays={name: np.asarray(array) for name, array in weights.arrays.items()})


def open_weights(path: Path | str, encoder_only: bool = False) -> Weights:
    """`read`, with arrays that are read when they are used (`StoredTensor`), as far as the format allows it; of a T5,
    with `encoder_only`, those of its encoder.

    Raises InputError for a damaged file, an unsupported architecture, and a file that could execute code (a pickle).
    """
    if not isinstance(encoder_only, bool):
        raise InputError(f"encoder_only must be True or False, got {encoder_only!r}")
    path = Path(path)
    contents = tensors.read_tensors(path)
    if encoder_only:
        is_decoder = lambda name: re.fullmatch(text_encoder_names.DECODER, strip_wrappers(name))
        contents = contents._replace(arrays={k: array for k, array in contents.arrays.items() if not is_decoder(k)})
    name = detect_naming(path, contents)
    if encoder_only and not isinstance(NAMINGS.get(name), text_encoder_names.T5EncoderNaming):
        raise InputError(f"encoder_only takes the encoder of a T5, and {path} has the names of {name}: leave it out")
    if name == OWN:
        options, function = metadata_options(path, contents), contents.metadata.get("function", "softmax")
        return Weights(options, contents.arrays, str(path), function=function)
    naming, facts = NAMINGS[name], Facts(contents.config)
    if facts.values.get("quantization_config"):
        raise InputError(f"{path}: quantized safetensors files are not read: give one in bfloat16, or a .gguf file")
    try:
        arrays = without_copies(naming, normalize_names(naming.normalize_name, contents.arrays))
        state_dict = naming.prepare(arrays, facts)
        options = naming.infer_options(state_dict, facts)
        if options.num_heads < 1 or min(naming.layout_sizes(options).values()) < 0:
            raise ValueError(f"{options.num_heads} heads")
        heads = [state_dict[row.tensor] for row in naming.table if row.param in HEADS and row.tensor in state_dict]
        function = class_function(facts, len(heads[0])) if heads else "softmax"
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, ZeroDivisionError) as error:
        raise InputError(f"{path} is not {name}'s: {type(error).__name__} {error}") from error
    params = naming.finish(options, facts, convert_params(path, naming, options, state_dict))
    options, params = naming.complete(options, params, path if path.is_dir() else path.parent)
    note = facts.note()
    return Weights(options, params, f"{path} ({name}{note})", note, function)


def strip_wrappers(name: str) -> str:
    """Remove what `torch.compile` and `DataParallel` add to the names of tensors.

    >>> strip_wrappers("_orig_mod.module.h.0.ln_1.bias"), strip_wrappers("vit._orig_mod.layernorm.bias")
    ('h.0.ln_1.bias', 'vit.layernorm.bias')
    """
    return re.sub(r"(^|(?<=\.))(_orig_mod|module)\.", "", name)


def normalize_names(normalize: Callable[[str], str], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Spell all names as `normalize` does; InputError if two different tensors would get one name."""
    result: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        name = normalize(strip_wrappers(name))
        if name in result and not np.array_equal(result[name], array):
            raise InputError(f"two different tensors are both called {name}, once with a prefix: leave one of them out")
        result[name] = array
    return result


def without_copies(naming: Naming, state_dict: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Leave out the tensors that our model does not hold; InputError if one differs from what our model computes."""
    result = {}
    for name, array in state_dict.items():
        rule = next((rule for pattern, rule in naming.copies.items() if re.fullmatch(pattern, name)), None)
        if rule is None:
            result[name] = array
            continue
        expected = rule(state_dict, array)
        if expected is not None and not np.array_equal(expected, array):
            raise InputError(f"{name} must be tied to the tensor or function that it copies, and differs from it")
    return result


def detect_naming(path: Path, contents: tensors.Tensors) -> str:
    """Detect the naming scheme of tensors; InputError if it is not supported."""
    if contents.metadata:
        return OWN
    model_type = contents.config.get("model_type")
    supported = dict.fromkeys(kind for naming in NAMINGS.values() for kind in naming.model_types)
    for name, naming in NAMINGS.items():
        fits = model_type is None or model_type in (naming.model_types or (model_type,))
        if fits and naming.mark in {naming.normalize_name(strip_wrappers(tensor)) for tensor in contents.arrays}:
            return name
    if model_type is not None and model_type not in supported:
        raise InputError(f"{path}: model_type {model_type} is not supported; supported: {', '.join(supported)}")
    first = ", ".join(sorted(contents.arrays)[:3])
    raise InputError(
        f"{path} must have the names of {OWN}, {', '.join(NAMINGS)}; "
        f"it has {len(contents.arrays)} others ({first}, ...)"
    )


def convert_params(path: Path, naming: Naming, options, state_dict: dict) -> dict[str, np.ndarray]:
    """Convert arrays to this package's names; InputError if one is missing or shapes contradict each other."""
    rows = expand_layers(naming.table, state_dict)
    layouts = [(row.tensor_layout, state_dict[row.tensor].shape) for row in rows if row.tensor in state_dict]
    sizes = solve_sizes(layouts, naming.layout_sizes(options))
    for prefix in naming.optional:
        optional = [row for row in rows if row.param.startswith(prefix)]
        if not any(row.tensor in state_dict for row in optional):
            rows = [row for row in rows if row not in optional]
    sizes |= {letter: 0 for row in rows for letter in re.findall(r"[a-z]", row.tensor_layout) if letter not in sizes}
    rows = [row for row in rows if row.tensor in state_dict or has_param(row.param, options)]
    shapes = {name: array.shape for name, array in state_dict.items()}
    check_shapes(str(path), {row.tensor: shape_of(row.tensor_layout, sizes) for row in rows}, shapes)
    for row in rows:
        if (stored := getattr(state_dict[row.tensor], "kind", "F32")) not in tensors.FLOATS:
            raise InputError(
                f"{path}: {row.tensor} must be of type {', '.join(tensors.FLOATS)}, is {stored}: quantized weights are "
                "read from .gguf files only"
            )
    return to_params(rows, state_dict, sizes)


def has_param(param: str, options) -> bool:
    """Whether a model with these options has the parameter `param`."""
    if "/pre_logits/" in param:
        return options.pre_logits_dim > 0
    if param == "registers":
        return options.num_registers > 0
    if param == "kernel":
        return options.tied_embeddings in (False, "none", "inputs")
    return getattr(options, "use_bias", True) or not re.search(r"attention/\S+/bias$", param)


def metadata_options(path: Path, contents: tensors.Tensors) -> configs.ModelOptions:
    """Parse the model options in the metadata that this package wrote; they cannot trigger an import."""
    values = contents.metadata.get("model") if isinstance(contents.metadata, dict) else None
    try:
        if not isinstance(values, dict) or any(":" in str(value) for value in values.values()):
            raise ValueError("its model options name something outside this package")
        options = configs.from_json(values)
        if not isinstance(options, configs.ModelOptions):
            raise ValueError(f"a {type(options).__name__} is no model")
        if any(value > len(contents.arrays) for name, value in vars(options).items() if name.endswith("layers")):
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
    arrays, metadata, extra_files, note = {k: np.asarray(v) for k, v in weights.arrays.items()}, {}, {}, ""
    if naming == OWN:
        metadata = {"model": configs.to_json(weights.options)}
        metadata |= {"function": weights.function} if weights.function != "softmax" else {}
        names = getattr(weights.data, "names", ())
        extra_files = {"config.json": metadata | ({"id2label": dict(enumerate(names))} if names else {})}
    else:
        kind = NAMINGS.get(naming)
        fits = lambda kind: isinstance(weights.options, kind.options_type) and not kind.read_only
        if kind is None or not fits(kind):
            having = [name for name, kind in NAMINGS.items() if fits(kind)]
            raise InputError(
                f"the weights of a {configs.model_name(weights.options)} can be written with --naming "
                f"{', '.join([OWN, *having])}; got {naming}"
            )
        if flags := differing_flags(weights.options, kind.reader_options(weights.options)):
            raise InputError(f"{naming} has no model with {', '.join(flags)}: export with --naming {OWN}")
        call = weights.options, arrays, weights.data
        extra_files = {"config.json": kind.config_json(*call)} | kind.extra_files(*call)
        if weights.function != "softmax":
            kinds = {"sigmoid": "multi_label_classification", "none": "regression"}
            extra_files["config.json"]["problem_type"] = kinds[weights.function]
        note, arrays = kind.note(weights.options), export_arrays(kind, weights)
    return f"{write_files(directory, form, arrays, extra_files, metadata)}, named as {naming}{note}"


def write_files(directory: Path, form: str, arrays: dict, extra_files: dict, metadata: dict) -> str:
    """Write tensors and further files, {name: JSON values, or bytes}, to a new directory, atomically; return a line
    with its size."""

    def fill(place: Path):
        tensors.write_tensors(place / f"model{tensors.KINDS[form]}", arrays, metadata)
        for name, content in extra_files.items():
            (place / name).parent.mkdir(exist_ok=True)
            text = content if isinstance(content, bytes) else (json.dumps(content, indent=1) + "\n").encode()
            (place / name).write_bytes(text)

    make_directory(directory, fill)
    size = sum(file.stat().st_size for file in directory.iterdir())
    count = sum(array.size for array in arrays.values())
    return f"{directory}: {len(arrays)} tensors, {count:,} numbers, {size / 1e6:.1f} MB"


def export_arrays(naming: Naming, weights: Weights, facts: Facts | None = None) -> dict[str, np.ndarray]:
    """Convert arrays to the names and layouts of another library; InputError for arrays that it does not have. `facts`
    are those of the original config.json, if any."""
    params = naming.undo(weights.options, facts or Facts({}), weights.arrays)
    rows = [row for row in expand_layers(naming.table, params) if set(param_paths(row.param)) <= params.keys()]
    unmapped = sorted(params.keys() - {name for row in rows for name in param_paths(row.param)})
    if unmapped:
        raise InputError(
            f"the other library has no place for {len(unmapped)} of our arrays ({', '.join(unmapped[:3])})"
        )
    shapes = [(row.param_layout, np.shape(params.get(row.param, 0))) for row in rows]
    sizes = solve_sizes(shapes, naming.layout_sizes(weights.options))
    return to_state_dict(rows, params, sizes)


def make_directory(directory: Path, fill: Callable[[Path], None]):
    """Create a directory atomically: `fill` writes to a temporary directory, which is then renamed."""
    check_output(directory, "directory")
    try:
        with temporary_file(directory) as temporary:
            temporary.mkdir()
            fill(temporary)
    except (PermissionError, NotADirectoryError, FileExistsError, FileNotFoundError) as error:
        raise InputError(f"{directory} cannot be written ({error.strerror}); give another --out DIR") from error
