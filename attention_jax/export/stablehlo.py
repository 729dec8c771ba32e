"""Export of trained models as StableHLO programs, which run without this package (`jax.export`).

The directory holds a program for each platform (a single one for several platforms would lower each platform's
attention for all of them), the weights, which they share, and manifest.json, which describes inputs and outputs. The
batch size is dynamic.
"""

import contextlib
import datetime
import importlib
import json
import shutil
import time
from collections.abc import Callable
from functools import singledispatch
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as exporting

from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError
from attention_jax.export.text_steps import tokenizer_steps
from attention_jax.pretrained.exchange import flat, make_directory, nested
from attention_jax.tasks.language import LanguageTask
from attention_jax.tasks.seq2seq import Seq2seqTask
from attention_jax.tasks.text_classification import TextTask
from attention_jax.tasks.vision import VisionTask

TIMED = (1, 32)
"""Batch sizes of the timings in the summary."""


class Input(NamedTuple):
    """An input of an exported program."""

    name: str
    shape: tuple[int, ...]
    """Shape of an example, without the batch axis."""
    dtype: str
    meaning: str


class Service(NamedTuple):
    """The exported computation of a task, with its inputs and output."""

    compute: Callable
    """(params, *inputs [N, ...]) -> output [N, ...]."""
    inputs: tuple[Input, ...]
    output: str
    """Description of the output, for the manifest."""
    example: tuple[np.ndarray, ...]
    """A batch of one example: each input as [1, ...]."""
    words: dict
    """Vocabularies and class names, which map indices to text; written to words.json."""
    preprocessing: dict
    """Preprocessing recipe for the manifest; "reference" names prepare_image.py or prepare_text.py."""
    files: dict[str, bytes] = {}  # noqa: RUF012
    """Files that the preprocessing reads, by name."""


@singledispatch
def service(task) -> Service:
    """Return the exported computation of a task; InputError for a task that does not support it."""
    raise InputError(f"there is no StableHLO of a {type(task).__name__} yet: export its weights")


@service.register
def _(task: VisionTask) -> Service:
    side = task.config.data.resize_pixels or task.data.train.image.shape[1]
    image = Input("image", (side, side, task.data.train.image.shape[-1]), "uint8", "rows, columns, channels; 0 to 255")

    def logits(params, image):
        return task.model.apply({"params": params}, task.preparation.for_evaluation(image))[0]

    example = np.zeros((1, *image.shape), np.uint8)
    recipe = {
        "side": side,
        "mode": "L" if image.shape[-1] == 1 else "RGB",
        "filter": "area" if task.config.data.resize_pixels else "bilinear",
        "steps": [
            "turn the image upright as its EXIF says",
            "of 12 or 16 bits keep the upper eight; put a transparent image on white",
            "convert it to `mode`: L is gray, RGB color",
            "resize the shorter side to `side`: bilinear with Pillow's antialiasing, or the mean over each area",
            "cut out the middle square; the program scales and normalizes the bytes itself",
        ],
        "reference": "prepare_image.py",
    }
    classes = {"classes": list(task.data.names)}
    return Service(logits, (image,), "logits [batch, classes]", (example,), classes, recipe)


@service.register
def _(task: Seq2seqTask) -> Service:
    longest = max(pairs.source.shape[1] for pairs in (*task.data.train, *task.data.held_out.values()))
    inputs = (
        Input("source", (longest,), "int32", "tokens, eos at the end where there is one, filled up with padding"),
        Input("source_length", (), "int32", "tokens without padding"),
    )
    if task.config.decode.beam_size > 1:
        print("a beam search is exported as greedy decoding")

    def tokens(params, source, source_length):
        greedy = Seq2seqTask(_with_beam_of_one(task.config), task.data, task.model)
        return greedy.generate(params, {"source": source, "source_length": source_length})

    pairs = next(iter(task.data.held_out.values()))
    row = np.zeros((1, longest), np.int32)
    row[:, : pairs.source.shape[1]] = pairs.source[:1]
    words = {
        "source": _tokens(task.data.source_vocabulary),
        "target": _tokens(task.data.target_vocabulary),
        "reversed": task.config.data.reverse_source,
    }
    example, files = (row, pairs.source_length[:1].astype(np.int32)), {}
    encode, _ = tokenizer_steps(task.data.source_tokenizer, "source", files)
    _, decode = tokenizer_steps(task.data.target_tokenizer, "target", files)
    source = task.data.source_vocabulary
    begin = source.decode([source.bos_id]) if task.data.source_bos else []
    recipe = text_recipe(encode, "source", source, begin=begin, end=True) | decoding(decode, "target")
    return Service(tokens, inputs, "tokens [batch, longest], to the first eos", example, words, recipe, files)


@service.register
def _(task: TextTask) -> Service:
    widest, is_pretrained = task.config.data.max_length, task.data.tokenizer.recipe[:1] == ("pretrained",)
    meaning = "tokens of tokenizer.json, special ones included, filled up with padding"
    inputs = (
        Input("tokens", (widest,), "int32", meaning if is_pretrained else "tokens, filled up with padding"),
        Input("length", (), "int32", "tokens without padding"),
    )

    def logits(params, tokens, length):
        return task.model.apply({"params": params}, tokens, length)[0]

    vocabulary, files = task.data.vocabulary, {}
    encode, _ = tokenizer_steps(task.data.tokenizer, "tokens", files)
    recipe = text_recipe(encode, "tokens", vocabulary, most=widest, empty=vocabulary.decode([vocabulary.unk_id or 0]))
    words = {"tokens": _tokens(vocabulary), "classes": list(task.data.names)}
    example = (np.zeros((1, widest), np.int32), np.array([widest], np.int32))
    return Service(logits, inputs, "logits [batch, classes]", example, words, recipe, files)


@service.register
def _(task: LanguageTask) -> Service:
    width = task.data.train.shape[1] - 1
    tokens = Input("tokens", (width,), "int32", "the tokens so far; the logits of a position depend on those up to it")

    def logits(params, tokens):
        return task.model.apply({"params": params}, tokens)[0]

    example, files = task.data.train[:1][:, :-1].astype(np.int32), {}
    words = {"tokens": _tokens(task.data.vocabulary)}
    encode, decode = tokenizer_steps(task.data.tokenizer, "tokens", files)
    recipe = text_recipe(encode, "tokens", task.data.vocabulary) | decoding(decode, "tokens")
    output = "logits [batch, positions, tokens] of each next token"
    return Service(logits, (tokens,), output, (example,), words, recipe, files)


def _with_beam_of_one(config):
    from attention_jax.config import replace

    return replace(config, **{"decode.beam_size": 1})


def text_recipe(encode: list, words: str, vocabulary: Vocabulary, begin=(), end=False, most=None, empty=()) -> dict:
    """Return the preprocessing recipe of texts.

    It holds the steps to tokens, the entry of words.json with their ids, the tokens that a text begins with, whether
    eos is appended, the number of tokens that are kept, and the tokens that replace an empty text.
    """
    ends = vocabulary.decode([vocabulary.eos_id]) if end and vocabulary.eos_id is not None else []
    recipe = {
        "steps": encode,
        "vocabulary": words,
        "begin": list(begin),
        "end": ends,
        "most": most,
        "empty": list(empty),
    }
    return {"reference": "prepare_text.py", "encode": recipe}


def decoding(decode: list, words: str) -> dict:
    """Return the steps from tokens to text, for the vocabulary in an entry of words.json."""
    return {"decode": {"steps": decode, "vocabulary": words}}


def _tokens(vocabulary: Vocabulary) -> dict:
    ids = {name: getattr(vocabulary, f"{name}_id") for name in ("pad", "bos", "eos", "unk")}
    return {"tokens": vocabulary.tokens} | ids


def export(task, params, directory: Path, platforms=("cpu", "cuda", "tpu")) -> str:
    """Write programs, weights and manifest to a new directory; return a summary with their size and speed here."""
    importlib.import_module("flatbuffers")  # jax writes programs with it, and says so at the very end
    served = service(task)
    params = jax.tree.map(lambda x: np.asarray(x, np.float32), flat(params))
    if not platforms:
        raise InputError("--platforms needs at least one of cpu, cuda, tpu")
    with without_locations():
        programs = {platform: export_program(served, params, platform) for platform in dict.fromkeys(platforms)}

    def fill(place: Path):
        for platform, program in programs.items():
            (place / f"{platform}.stablehlo").write_bytes(program.serialize())
        np.savez(place / "weights.npz", **params)
        (place / "words.json").write_text(json.dumps(served.words, ensure_ascii=False) + "\n", encoding="utf-8")
        reference = served.preprocessing["reference"]
        shutil.copyfile(Path(__file__).with_name(reference), place / reference)
        for name, content in served.files.items():
            (place / name).write_bytes(content)
        manifest_text = json.dumps(manifest(served, programs), indent=1)
        (place / "manifest.json").write_text(manifest_text + "\n", encoding="utf-8")

    make_directory(directory, fill)
    sizes = [f"{platform} {(directory / f'{platform}.stablehlo').stat().st_size:,}" for platform in programs]
    line = f"{directory}: programs of {', '.join(sizes)} bytes, weights of {_size(directory):,} bytes"
    return line + (f"; {time_program(served, params, programs['cpu'])} on this CPU" if "cpu" in programs else "")


@contextlib.contextmanager
def without_locations():
    """Context manager that keeps source file paths of this machine out of lowered programs."""
    previous = jax.config.jax_traceback_in_locations_limit
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", previous)


def _size(directory: Path) -> int:
    return (directory / "weights.npz").stat().st_size


def export_program(served: Service, params: dict, platform: str) -> exporting.Exported:
    """Export the program of (weights by name, inputs) for a platform, with a symbolic batch size.

    Models that need a concrete batch size are vmapped over single examples.
    """
    (rows,) = exporting.symbolic_shape("batch")
    shapes = [jax.ShapeDtypeStruct((rows, *spec.shape), spec.dtype) for spec in served.inputs]
    weights = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in params.items()}

    def together(weights, *inputs):
        return served.compute(nested(weights), *inputs)

    def side_by_side(weights, *inputs):
        return jax.vmap(lambda *row: together(weights, *(x[None] for x in row))[0])(*inputs)

    try:
        return exporting.export(jax.jit(together), platforms=[platform])(weights, *shapes)
    except jax.errors.InconclusiveDimensionOperation:
        return exporting.export(jax.jit(side_by_side), platforms=[platform])(weights, *shapes)


def manifest(served: Service, programs: dict) -> dict:
    """Return the manifest of a program, which describes how to call it, as JSON values; with the date, as JAX promises
    to read a program for six months."""
    inputs = [
        {"name": spec.name, "shape": ["batch", *spec.shape], "dtype": spec.dtype, "meaning": spec.meaning}
        for spec in served.inputs
    ]
    program = next(iter(programs.values()))
    (out,) = program.out_avals
    return {
        "preprocessing": served.preprocessing,
        "programs": {platform: f"{platform}.stablehlo" for platform in programs},
        "weights": "weights.npz",
        "words": "words.json",
        "inputs": inputs,
        "output": {"shape": [str(size) for size in out.shape], "dtype": str(out.dtype), "meaning": served.output},
        "date": datetime.date.today().isoformat(),
        "jax": jax.__version__,
        "calling_convention_version": program.calling_convention_version,
    }


def time_program(served: Service, params: dict, program: exporting.Exported) -> str:
    """Measure the milliseconds per example, the best of five calls."""
    timings = []
    call = jax.jit(program.call)
    for rows in TIMED:
        inputs = [jnp.asarray(np.repeat(array, rows, axis=0)) for array in served.example]
        jax.block_until_ready(call(params, *inputs))
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            jax.block_until_ready(call(params, *inputs))
            seconds.append(time.perf_counter() - began)
        timings.append(f"{1000 * min(seconds) / rows:.3g} ms an example at batch {rows}")
    return ", ".join(timings)
