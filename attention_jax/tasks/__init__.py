"""`Task`: what a model family trains, evaluates, predicts and shows, one subclass and one file per family."""

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.config import Config, import_object, walk
from attention_jax.config.options import model_name
from attention_jax.data import batches
from attention_jax.data.cache import file_stamp
from attention_jax.data.stream import Share
from attention_jax.data.text_tables import Columns
from attention_jax.errors import InputError
from attention_jax.ops.dispatch import explain
from attention_jax.report.attention_data import AttentionRecord


class Evaluation(NamedTuple):
    """The result of an evaluation."""

    metrics: dict[str, float]
    """{"valid.loss": ..., ...}"""
    written: Mapping[str, np.ndarray] = MappingProxyType({})
    """Generated tokens [N, T] without bos, for each decoded split."""
    samples: tuple[str, ...] = ()
    """A few lines of generated text to show during training."""
    probabilities: Mapping[str, np.ndarray] = MappingProxyType({})
    """Probabilities [N, C] of the classes of the test split, of a classifier in a full evaluation."""
    classification: Mapping[str, dict] = MappingProxyType({})
    """Metrics of each class and of calibration (`report.class_report.report_classes`) of these splits."""


@dataclass(frozen=True, eq=False)
class Task:
    """A model on a dataset.

    A subclass defines `init`, `loss` and `evaluate`, and, where the defaults do not fit, `load`, `make_model`,
    `examples` and `describe`. Nothing in a task changes once it is made, and a task is equal to itself only
    (`eq=False`), because compiled functions are cached by bound method.

    A further method is optional: `metric_names(full)` lists the metrics that `evaluate(params, full)` may return, so
    that a misspelled --train.best-metric fails before training.

    `predict`, `attention_maps`, `excerpt` and `report` are what a trained model shows; training calls none of them.
    """

    config: Config
    data: Any = field(repr=False)
    model: Any
    """The Flax module."""

    table_columns: ClassVar[Columns] = Columns()
    """The names of columns in tables of texts and predictions."""
    eval_means: ClassVar[tuple[str, ...]] = ("examples",)
    """The values of --train.eval-mean that `evaluate` knows."""

    @classmethod
    def load(cls, config: Config) -> Any:
        """Load the dataset of a configuration; by default the tasks of a process share one copy."""
        return loader_of(config.data.loader)(config.data)

    @classmethod
    def make_model(cls, config: Config, data) -> Any:
        """Return the Flax module; InputError for options that contradict each other or the data."""
        return build_model(config)

    @property
    def examples(self) -> tuple[dict[str, np.ndarray], ...]:
        """The training examples, grouped by shape: {name: array [N, ...]} for each shape."""
        return (self.data.train._asdict(),)

    @property
    def stream(self):
        """A `data.stream.Stream` of data that are read during training, or None."""
        return None

    @property
    def buckets(self) -> tuple[dict[str, np.ndarray], ...]:
        """The training examples that are kept on the devices."""
        return () if self.stream else self.examples

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Examples per batch of each bucket."""
        return (self.config.train.batch_size,) * len(self.examples)

    def init(self, rng) -> Any:
        """Return initial parameters."""
        raise NotImplementedError

    def loss(self, params, batch: dict, rng) -> tuple[Any, Any, dict]:
        """Return (sum, count, {metric: (sum, count)}) over a batch; gradients are those of sum / count.

        A batch has the arrays of `examples` [B, ...] and "weight" [B], which is 0 for padding. The method is traced, in
        a sweep also with tracers in `config`.
        """
        raise NotImplementedError

    def attention_calls(self, params) -> list[dict]:
        """Return what `explain` returns for `loss`, on a batch of the largest examples: how each call of `attend` is
        computed on each platform; empty for a model without attention. `params` may be shapes: the loss is traced once,
        without its gradient.
        """
        size = lambda bucket: sum(math.prod(x.shape[1:]) for x in bucket[0].values())
        arrays, rows = max(zip(self.examples, self.batch_sizes), key=size)
        batch = {name: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype) for name, x in arrays.items()}
        batch["weight"] = jax.ShapeDtypeStruct((rows,), np.float32)
        return explain(self.loss, params, batch, jax.random.PRNGKey(0))

    def attention_statistics(self, params, batch: dict, rng) -> dict:
        """Return {layer: [H, 3]}, the largest logit, the entropy and the weight of the first token of every head, in
        the forward pass of `loss`; empty for a model without `MultiHeadAttention`."""
        recorder = Recorder(self.model)
        replace(self, model=recorder).loss(params, batch, rng)
        leaves, _ = jax.tree_util.tree_flatten_with_path(recorder.statistics)
        statistics = {}
        for path, x in leaves:
            name, call = jax.tree_util.keystr(path[1:-2], simple=True, separator="."), path[-1].idx
            name = f"{name}.call{call}" if call else name  # of a layer that is called more than once
            statistics |= {name: x} if x.ndim == 2 else {_of_layer(name, i): row for i, row in enumerate(x)}
        return statistics

    def plan(self, epoch: int, steps_per_call: int) -> list[batches.Chunk]:
        """Return the compiled calls of an epoch: [(bucket, indices [K, B], weight [K, B]), ...] of K steps each.

        All steps of a call use one bucket. With several buckets K is 1, because many consecutive steps at one length
        would bias the model towards that length.
        """
        sizes = [len(next(iter(arrays.values()))) for arrays in self.examples]
        steps = steps_per_call if len(sizes) == 1 else 1
        return batches.plan(self.config.train.seed, epoch, sizes, self.batch_sizes, steps)

    def first_batch(self) -> dict[str, np.ndarray]:
        """Return the batch of the first step of epoch 0, as `loss` takes it, without padding."""
        if self.stream:
            call = self.stream.call(0, 0, Share())
            rows, weight = np.flatnonzero(call.weight[0]), call.weight[0]
            return {name: x[0][rows] for name, x in call.bucket.items()} | {"weight": weight[rows]}
        bucket, indices, weight = self.plan(0, self.config.train.steps_per_call)[0]
        rows = np.flatnonzero(weight[0])
        return {name: x[indices[0][rows]] for name, x in self.buckets[bucket].items()} | {"weight": weight[0][rows]}

    def evaluate(self, params, full: bool) -> Evaluation:
        """Compute metrics on held-out data, briefly after an epoch or in `full` at the end of a run."""
        raise NotImplementedError

    def eval_slices(self, examples: int) -> list[slice]:
        """Return slices of this many held-out examples, whose means `evaluate` averages: all at once, or batches."""
        size = examples if self.config.train.eval_mean == "examples" else self.config.train.batch_size
        return [slice(first, first + size) for first in range(0, examples, size)]

    def describe(self) -> dict:
        """Return facts about data and model for result.json."""
        return {}

    def predict(self, params, texts: list[str], figure: Path | None = None) -> list[str]:
        """Return one line of output per text; plot the attention to the file `figure`, if given."""
        raise InputError(f"a {type(self).__name__} has no predictions for texts: evaluate it instead")

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes of a classifier; () of another model."""
        return ()

    def probabilities(self, params, texts: list[str]) -> np.ndarray:
        """Return the probabilities [N, classes] of `classes` for each text, of a classifier."""
        raise InputError(f"a {type(self).__name__} has no classes: predict with it instead")

    def warm_up(self, params, length: int, rows: int):
        """Compile what answers `rows` texts of `length` tokens, as they are padded."""
        raise InputError(f"the inputs of a {type(self).__name__} have one shape: predict one of them, to compile it")

    def perplexity(self, params, text: str) -> dict[str, float]:
        """Return the metrics of a language model on a new text."""
        raise InputError(f"--text is for language models; a {type(self).__name__} has no perplexity: leave it out")

    def new_examples(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield the class and the text of each example in a file, or the path of each image in a directory."""
        raise InputError(f"--data evaluates classifiers; a {type(self).__name__} has no classes: leave it out")

    def attention_maps(self, params, texts: list[str]) -> tuple[AttentionRecord, ...]:
        """Return attention maps for each text, or for some held-out inputs if there are none; () without attention."""
        return ()

    def excerpt(self) -> Any:
        """Return the part of the data that predictions need, which a run stores (`data/stored.py`).

        It has vocabularies, names, shapes, and the examples that `attention_maps` shows. None means that a run needs
        its dataset.
        """
        return None

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        """Plot figures to `directory` and write texts to its parent after a full evaluation; return the figures."""
        return []


def _of_layer(name: str, i: int) -> str:
    """The name of layer `i` of those that a scan has stacked.

    >>> _of_layer("decoder.layers_3.attention", 1)
    'decoder.layer_4.attention'
    """
    return re.sub(r"layers_(\d+)", lambda first: f"layer_{int(first[1]) + i}", name)


class Recorder:
    """A Flax module that records the statistics of its attention while it is applied."""

    def __init__(self, model):
        self.model, self.statistics = model, []

    def __getattr__(self, name):
        return getattr(self.model, name)

    def apply(self, *args, **kwargs):
        out, state = self.model.apply(*args, **kwargs, mutable=["attention_statistics"])
        self.statistics.append(state.get("attention_statistics", {}))
        return out


@functools.lru_cache(maxsize=2)
def loader_of(import_path: str) -> Callable:
    """Return the function with this import path, which keeps what it last returned while the files that its options
    name are the same, so that the tasks of a sweep share one copy of their data."""
    load = import_object(import_path)
    load_once = functools.lru_cache(maxsize=1)(lambda stamps, *args: load(*args))
    return lambda options, *args: load_once(_stamps(options), options, *args)


def _stamps(options) -> tuple:
    """The path and `file_stamp` of each of the user's files that options of data name, or that are in a directory."""
    places = [Path(value) for _, info, value in walk(options) if info.user_data and value and isinstance(value, str)]
    paths = [str(path) for place in places for path in (place, *place.rglob("*")) if path.exists()]
    return tuple((path, file_stamp(path)) for path in paths)


def build(config: Config, data=None) -> Task:
    """Return the task of a configuration, of the class named by the model's options; loads `data` unless given."""
    if config.model is None or config.data is None:
        raise InputError(f"training {config.name} needs data and a model; its configuration lacks one of them")
    kind = import_object(config.model.task)
    if config.train.eval_mean not in kind.eval_means:
        raise InputError(
            f"{model_name(config.model)} needs --train.eval-mean {' or '.join(kind.eval_means)}, got "
            f"{config.train.eval_mean}: batches are for language models, translators and image classifiers, sorted "
            "ones for translators"
        )
    data = kind.load(config) if data is None else data
    return kind(config, data, kind.make_model(config, data))


def format_classes(names: Sequence[str], probabilities: np.ndarray) -> str:
    """Return the three most probable classes with their probabilities [C].

    >>> format_classes(["cat", "dog", "owl", "pig"], np.array([0.2, 0.5, 0.0, 0.3]))
    'dog 0.500, pig 0.300, cat 0.200'
    """
    return ", ".join(f"{names[i]} {probabilities[i]:.3f}" for i in np.argsort(-probabilities, kind="stable")[:3])


def mean_perplexity(losses: Sequence[float]) -> float:
    """Return the mean of the perplexities of losses in nats a token, each at most e^50.

    >>> mean_perplexity([0.0, np.log(3.0)])
    2.0
    """
    return float(np.mean([np.exp(min(loss, 50.0)) for loss in losses]))


def text_metrics(nats: float, predicted: int, stride: int, tokens: int, characters: int) -> dict[str, float]:
    """The metrics of a language model on a text of so many tokens and characters, read in windows that begin every
    `stride` tokens; `nats` is the sum of the losses of the tokens that were predicted.

    >>> metrics = text_metrics(2 * np.log(8.0), predicted=2, stride=4, tokens=3, characters=6)
    >>> round(float(metrics["bits_per_character"]), 6)
    1.5
    """
    loss = nats / predicted
    return {
        "tokens": predicted,
        "stride": stride,
        "loss": loss,
        "perplexity": mean_perplexity([loss]),
        "bits_per_character": loss * tokens / characters / float(np.log(2.0)),
    }


def build_model(config: Config, *sizes):
    """Return the Flax module with the model's options; `sizes` are determined by the data, such as of a vocabulary."""
    return import_object(config.model.module)(config.model, *sizes)


@functools.partial(jax.jit, static_argnames=("model", "shape"))
def initial(model, rng, shape: tuple[int, ...]):
    """Return initial parameters of a model with one input array of this shape."""
    return model.init(rng, jnp.zeros(shape))["params"]
