"""Activations of many texts in memory-mapped files, written batch by batch and continued after an interruption."""

import hashlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from attention_jax.errors import InputError
from attention_jax.files import directory_lock, read_object, write_json
from attention_jax.interpret.intervene import trace
from attention_jax.interpret.prefix import model_prefix
from attention_jax.interpret.sites import check_model, find_sites, heads_axis, select_sites

BATCH_TOKENS = 2048
"""Tokens of a batch, with padding; a text of more is a batch of its own."""
SHORTEST = 16
"""Tokens to which short texts are padded; longer ones to the next power of two."""
INDEX = "index.json"
ROWS = ("tokens", "text", "position")
"""The files of what each row of the activations is of."""


@dataclass(frozen=True)
class ActivationStore(Mapping):
    """Activations in files: `store[site]` is a memory-mapped array [N, ...], a row for each token of all texts.

    Rows are in the order of the batches: texts by padded length, then as given; a text's rows are consecutive.

    Attributes:
      path: the directory.
      model: the name of the model.
      tokens: the token id of each row, [N].
      text: the number of its text, counted from 0, [N].
      position: its position in this text, [N].
    """

    path: Path
    model: str
    tokens: Int[np.ndarray, "N"]
    text: Int[np.ndarray, "N"]
    position: Int[np.ndarray, "N"]
    dtypes: dict[str, str]
    """{site: the type of its activations}, which a file of bfloat16 does not say."""

    def __getitem__(self, site: str) -> np.ndarray:
        if site not in self.dtypes:
            raise InputError(f"{self.path} has the sites {', '.join(self.dtypes)}, got {site!r}")
        return np.load(self.path / f"{site}.npy", mmap_mode="r").view(jnp.dtype(self.dtypes[site]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.dtypes)

    def __len__(self) -> int:
        return len(self.dtypes)

    def __repr__(self) -> str:
        return f"ActivationStore({str(self.path)!r}: {len(self.tokens)} tokens of {self.model}, {', '.join(self)})"


def activations(
    lm: Any, texts: Sequence[str | Sequence[int]], sites: str | Iterable[str], path: str | Path
) -> ActivationStore:
    """Write the activations of all tokens of texts to files in the directory `path`, and open them.

    Each site is a file SITE.npy of [N, ...], as are the `tokens`, their `text` and `position`; index.json says what
    they are. Texts are padded to powers of two and run in batches of about `BATCH_TOKENS` tokens, of which one is in
    memory; only the layers up to the last site are computed. The same call continues after the last batch that was
    written, and returns at once if there is none left.

    Args:
      lm: what `load_pretrained` returns, of a decoder or an encoder of texts.
      texts: texts, or lists of token ids.
      sites: sites with an axis of positions, [B, T, ...], as "decoder.14.residual_out"; with `*` and as a list.
      path: a directory, which is created; empty, or of the same model, texts and sites.

    Raises:
      InputError: for scores, weights and sites without positions, a model of other inputs, a text without tokens or
        with too many, and a directory of anything else.
    """
    path, model = Path(path), lm.model
    check_model(model)
    rows = _token_rows(lm, texts)
    batches = _plan_batches([len(row) for row in rows], getattr(lm.config, "longest_input", None))
    first_inputs = _model_inputs(model, rows, *batches[0])
    all_sites = find_sites(model, lm.params, first_inputs)
    names = select_sites(all_sites, sites)
    for name in names:
        if all_sites[name].shape[:2] != first_inputs[0].shape or (heads_axis(name) == 1):
            raise InputError(
                f"a store has sites [B, T, ...], a vector for each token, as residual streams; {name} is "
                f"{list(all_sites[name].shape)}: use trace"
            )
    prefix, params = model_prefix(model, lm.params, all_sites, names)
    order = [number for numbers, _ in batches for number in numbers]
    row_arrays = _row_arrays(rows, order)
    shapes = {name: (len(row_arrays["tokens"]), *all_sites[name].shape[2:]) for name in names}
    dtypes = {name: jnp.dtype(all_sites[name].dtype) for name in names}
    index = {
        "model": lm.name,
        "sites": {name: {"shape": list(shapes[name]), "dtype": dtypes[name].name} for name in names},
        "tokens": _digest(*row_arrays.values()),
        "weights": _digest(str(prefix), *jax.tree.leaves(params)),
        "batches": len(batches),
    }
    path.mkdir(parents=True, exist_ok=True)
    with directory_lock(path, wait=False):
        start = _start_files(path, index, row_arrays, shapes, dtypes)
        row = sum(len(rows[number]) for numbers, _ in batches[:start] for number in numbers)
        for batch, (numbers, width) in enumerate(batches[start:], start + 1):
            inputs = _model_inputs(prefix, rows, numbers, width)
            arrays = trace(prefix, params, *inputs, sites=names)
            mask = np.arange(inputs[0].shape[1]) < _lengths(rows, numbers, len(inputs[0]))[:, None]
            for name, x in arrays.items():
                _write_rows(path / f"{name}.npy", row, np.asarray(x)[mask])
            row += int(mask.sum())
            write_json(path / INDEX, {**index, "batches_written": batch})
    return open_activations(path)


def _token_rows(lm, texts) -> list[list[int]]:
    """The token ids of each text. Raises InputError for a text of no tokens, or of too many."""
    if isinstance(texts, str) or not isinstance(texts, Iterable) or not (texts := list(texts)):
        raise InputError("activations takes a list of texts, or of lists of token ids; at least one")
    rows, longest = [], getattr(lm.config, "longest_input", None)
    for number, text in enumerate(texts):
        row = lm.tokenizer.encode(text) if isinstance(text, str) else [int(token) for token in text]
        if not row or len(row) > (longest or len(row)):
            raise InputError(f"a text has 1 to {longest or 'any number of'} tokens, text {number} has {len(row)}")
        if not 0 <= min(row) <= max(row) < lm.model.vocab:
            raise InputError(f"tokens are ids 0 to {lm.model.vocab - 1}, text {number} has {min(row)} to {max(row)}")
        rows.append(row)
    return rows


def _plan_batches(lengths: Sequence[int], longest: int | None) -> list[tuple[list[int], int]]:
    """Batches of (numbers of texts, padded length), from short to long.

    >>> _plan_batches([3, 40, 16, 17], None)
    [([0, 2], 16), ([3], 32), ([1], 64)]
    """
    by_width: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        width = max(SHORTEST, 1 << (length - 1).bit_length())
        by_width.setdefault(min(width, longest or width), []).append(number)
    batches = []
    for width, numbers in sorted(by_width.items()):
        size = _batch_size(width)
        batches += [(numbers[i : i + size], width) for i in range(0, len(numbers), size)]
    return batches


def _batch_size(width: int) -> int:
    return max(1, BATCH_TOKENS // width)


def _lengths(rows, numbers: Sequence[int], size: int) -> np.ndarray:
    """The lengths of the texts of a batch, zero for what fills it up, [B]."""
    return np.array([len(rows[number]) for number in numbers] + [0] * (size - len(numbers)), np.int32)


def _model_inputs(model: nn.Module, rows, numbers: Sequence[int], width: int) -> tuple[np.ndarray, ...]:
    """What the model is called with: padded tokens [B, T], of an encoder their lengths [B] too."""
    size = _batch_size(width)
    tokens = np.zeros((size, width), np.int32)
    for i, number in enumerate(numbers):
        tokens[i, : len(rows[number])] = rows[number]
    required = [p.name for p in inspect.signature(model.__call__).parameters.values() if p.default is p.empty]
    if required == ["tokens"]:
        return (tokens,)
    if required == ["tokens", "length"]:
        return tokens, np.maximum(_lengths(rows, numbers, size), 1)
    raise InputError(
        f"a store is of a model of texts, and {type(model).__name__} takes {', '.join(required)}: use trace"
    )


def _row_arrays(rows, order: Sequence[int]) -> dict[str, Int[np.ndarray, "N"]]:
    """`ROWS` of all rows, texts being in this order."""
    lengths = [len(rows[number]) for number in order]
    tokens = np.concatenate([np.asarray(rows[number], np.int32) for number in order])
    position = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    return dict(zip(ROWS, (tokens, np.repeat(np.asarray(order, np.int32), lengths), position), strict=True))


def _digest(*values) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(value.encode() if isinstance(value, str) else np.ascontiguousarray(value).view(np.uint8))
    return digest.hexdigest()[:32]


def _start_files(path: Path, index: dict, row_arrays, shapes, dtypes) -> int:
    """The number of batches that the files of this index have; without files it makes them.

    Raises InputError for a directory of something else.
    """
    if (path / INDEX).exists():
        stored = read_object(path / INDEX)
        num_written = stored.get("batches_written", 0)
        if different := [key for key in index if stored.get(key) != index[key]]:
            raise InputError(
                f"{path} has activations of other {', '.join(different)}: give another directory, or delete it"
            )
        if num_written:
            return num_written
    elif any(path.iterdir()):
        raise InputError(f"{path} has files that are no activations: give an empty or a new directory")
    write_json(path / INDEX, {**index, "batches_written": 0})
    for name, x in row_arrays.items():
        np.save(path / f"{name}.npy", x)
    for name, shape in shapes.items():
        np.lib.format.open_memmap(path / f"{name}.npy", mode="w+", dtype=_file_dtype(dtypes[name]), shape=shape)
    return 0


def _file_dtype(dtype) -> np.dtype:
    """The type of an array in a file: bfloat16 is stored as the integers with its bits."""
    return dtype if dtype.kind == "f" else np.dtype(f"u{dtype.itemsize}")


def _write_rows(path: Path, first: int, x: np.ndarray):
    """Write rows of a file of an array, whose other rows stay as they are."""
    offset = np.load(path, mmap_mode="r").offset
    with path.open("r+b") as file:
        file.seek(offset + first * x[0].nbytes)
        file.write(np.ascontiguousarray(x).view(np.uint8).data)


def open_activations(path: str | Path) -> ActivationStore:
    """Open the activations that `activations` has written to a directory.

    Raises InputError for a directory without them, and for one that is not finished.
    """
    path = Path(path)
    if not (path / INDEX).is_file():
        raise InputError(f"{path} has no activations: interpret.activations(lm, texts, sites, path) writes them")
    index = read_object(path / INDEX)
    try:
        if index["batches_written"] < index["batches"]:
            raise InputError(
                f"{path} has {index['batches_written']} of {index['batches']} batches: call activations again with the "
                "same texts"
            )
        rows = [np.load(path / f"{name}.npy", mmap_mode="r") for name in ROWS]
        return ActivationStore(path, index["model"], *rows, {name: x["dtype"] for name, x in index["sites"].items()})
    except (KeyError, TypeError, OSError) as error:
        raise InputError(
            f"{path} is damaged ({' '.join(str(error).split())}): delete it, and write it again"
        ) from error
