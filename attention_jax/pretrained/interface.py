"""`Pretrained`, a loaded pretrained model: what its kinds may answer, and how its parameters are read."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import config as configs
from attention_jax.data.text_tables import Columns
from attention_jax.errors import InputError
from attention_jax.interpret import Batch
from attention_jax.pretrained import exchange, gguf
from attention_jax.pretrained.chat import Conversation
from attention_jax.pretrained.tokenizer import PretrainedTokenizer

Texts = Sequence[str]
Replacements = Mapping[str, Any] | None
FUNCTIONS = {"softmax": jax.nn.softmax, "sigmoid": jax.nn.sigmoid, "none": lambda logits: logits}
"""{how a classifier of another library is meant (config_json.py): what makes its logits its answer}"""


@dataclass(frozen=True, eq=False, repr=False)
class Pretrained:
    """A loaded pretrained model, what `load_pretrained` returns. Methods that it does not support raise InputError.

    Language models have `generate`, `chat`, `logits`, `loss` and `perplexity`; encoders `embed` and, with the head for
    it, `fill_mask` or `classify`; ViTs `classify`; translators `translate`. All have `attention` and `look`. Pass
    `model` and `params` to `attention_jax.interpret` and to your own code.

    >>> model = load_pretrained("smollm2.gguf")  # doctest: +SKIP
    >>> model.generate(["The capital of France is"], length=2)  # doctest: +SKIP
    [' Paris.']
    >>> model.loss(["The capital of France is Paris."]).round(2)  # doctest: +SKIP
    array([2.57])
    """

    path: Path
    config: configs.ModelOptions
    """The options of the model."""
    model: Any
    """The Flax module."""
    params: dict
    """Its parameters, a tree of arrays."""
    tokenizer: PretrainedTokenizer | None

    def __repr__(self) -> str:
        count = sum(x.size for x in jax.tree.leaves(self.params))
        return f"{type(self).__name__}({str(self.path)!r}, {type(self.config).__name__}, {count:,} parameters)"

    @property
    def name(self) -> str:
        """The name of the directory or of the file."""
        return self.path.resolve().stem if self.path.suffix == gguf.SUFFIX else self.path.resolve().name

    @property
    def table_columns(self) -> Columns:
        """The names of columns in tables of texts and predictions, as `LoadedRun.table_columns` has them."""
        return Columns()

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes of a classifier, in the order of `classify`; () of another model."""
        return ()

    @property
    def function(self) -> str:
        """What makes the logits of a classifier its answer, a key of `FUNCTIONS`."""
        return "softmax"

    def attention(self, texts: Texts) -> tuple:
        """Attention maps of each text (of a vision model: each image file), as `LoadedRun.attention` has them."""
        raise self._missing_feature_error("attention maps")

    def look(self, texts: Texts) -> Any:
        """The result of `attention` as an interactive page, as `LoadedRun.look` has it."""
        from attention_jax.report.attention_page import page

        return page(self.attention(check_texts(texts, "look")), self.name)

    def predict(self, texts: Texts, attention: Path | str | None = None) -> list[str]:
        """One line of output for each text: what `launch.py predict` prints."""
        raise self._missing_feature_error("predictions")

    def batch(self, texts: Texts) -> Batch:
        """Texts as one input of the functions of `attention_jax.interpret`: tokens padded to a power of two, from 16,
        and lengths."""
        raise self._missing_feature_error("tokens of texts")

    def hidden(self, tokens: Any, length: Any = None) -> jax.Array:
        """The last states [B, T, D] of an encoder, of token ids [B, T].

        Tokens from `length` [B] on are padding, which no token attends to; without it there is none, as in generators
        of images, which attend to the tokens that fill a text up."""
        raise self._missing_feature_error("states of tokens")

    def logits(self, texts: Texts, set: Replacements = None) -> list[np.ndarray]:
        """The logits [T, V] after each of the T tokens of each text.

        `set` replaces activations, as that of `interpret.run`, in each text alike; positions below 0 are counted from
        its end."""
        raise self._missing_feature_error("logits of next tokens")

    def loss(self, texts: Texts, set: Replacements = None) -> np.ndarray:
        """The loss [N] of each text, in nats per token, of all tokens but the first; `set` as in `logits`."""
        raise self._missing_feature_error("loss of texts")

    def perplexity(self, text: str) -> dict[str, float]:
        """Loss in nats per token, perplexity and bits per character of a long text, in windows of 512 tokens or fewer,
        which do not overlap: the stride.

        A window begins with what the tokenizer adds before a text; the first token of the others is not predicted.
        """
        raise self._missing_feature_error("perplexity")

    def generate(
        self,
        texts: Texts,
        stream: Callable[[str], None] | None = None,
        set: Replacements = None,
        **sampling: Any,
    ) -> list[str]:
        """The continuation of each text, all in one batch; `sampling` are options of `config.Generation`: length,
        temperature, top_k, top_p, repetition_penalty, seed. Those that are left out are what generation_config.json
        says. `stream` is called with each piece of the first one.

        `set` replaces activations while the texts are written, as `interpret.decoding_edits` says: a steering vector is
        {"decoder.14.residual_out": Part(4.0 * direction, adds=True)}."""
        raise self._missing_feature_error("continuations")

    def chat(
        self,
        conversations: Sequence[Conversation],
        stream: Callable[[str], None] | None = None,
        set: Replacements = None,
        **sampling: Any,
    ) -> list[str]:
        """The assistant's answer in each conversation, by the chat template in the model's files; the rest is as in
        `generate`. A conversation is what a user says, or its messages:
        [{"role": "user", "content": "What is the capital of France?"}]."""
        raise self._missing_feature_error("chats")

    def embed(self, texts: Texts) -> np.ndarray:
        """The embedding [N, D] of each text, with the prompt, the lower case and the greatest length that the files of
        sentence-transformers say, if there are any."""
        raise self._missing_feature_error("embeddings of texts")

    def fill_mask(self, texts: Texts, k: int = 5) -> list:
        """For each text and each mask in it the `k` most probable words, [(word, probability), ...]."""
        raise self._missing_feature_error("masked words")

    def classify(self, texts: Texts) -> np.ndarray:
        """The probabilities [N, classes] of each text (of a vision model: each image file), or what a regression says.

        They are a softmax or, as `problem_type` in config.json says or for one class, sigmoids.
        """
        raise self._missing_feature_error("classes")

    def translate(self, texts: Texts) -> list[str]:
        """The translation of each text."""
        raise self._missing_feature_error("translations")

    def warm_up(self, lengths: int | Sequence[int], *, rows: int = 1):
        """Raises InputError: `LoadedRun.warm_up` is for runs."""
        raise InputError(
            f"warm_up is for runs; {self.path} compiles in its first call: make one with a text like yours"
        )

    def _missing_feature_error(self, feature: str) -> InputError:
        can = [name for name in METHODS if getattr(type(self), name) is not getattr(Pretrained, name)]
        kind = configs.model_name(self.config)
        return InputError(f"{self.path} is a {kind}, which has no {feature}; it has {', '.join(can)}")


METHODS = (
    "batch",
    "hidden",
    "logits",
    "loss",
    "generate",
    "chat",
    "perplexity",
    "embed",
    "fill_mask",
    "classify",
    "translate",
    "attention",
)


def check_texts(texts, method: str) -> list[str]:
    """Return texts, or paths of image files, as a list of strings.

    Raises InputError for a single string instead of a list, and for elements that are empty or not strings.
    """
    if isinstance(texts, str | os.PathLike):
        raise InputError(f"{method} takes a list of texts; got one: {method}([{str(texts)!r}])")
    texts = [os.fspath(text) if isinstance(text, os.PathLike) else text for text in texts]
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise InputError(f"{method} takes texts; text {number} of {len(texts)} is a {type(text).__name__}")
        if not text.strip():
            raise InputError(f"a text to {method} must not be empty; text {number} of {len(texts)} is {text!r}")
    return texts


def refuse_figure(figure: Path | str | None):
    """Raise InputError for a `figure` of attention, which models of texts do not draw."""
    if figure is not None:
        raise InputError("--attention is for runs: launch.py look writes the attention maps of a pretrained model")


def check_ids(model, row: Sequence[int]):
    """Raise InputError for a token that the model does not have."""
    if max(row) >= model.vocab:
        raise InputError(f"the tokenizer has token {max(row)}, the model {model.vocab}: are they of one model?")


def read_params(weights: exchange.Weights, model, *batch: np.ndarray) -> dict:
    """Convert the parameters of a model to JAX arrays; each is removed from `weights.arrays` on conversion.

    Parameters that the weights do not have are initialized, with a note. Raises InputError for other shapes.
    """
    dtype, arrays, params = jnp.dtype(model.options.dtype), weights.arrays, {}
    start = lambda: model.init(jax.random.key(0), *batch)["params"]
    shapes = exchange.flat(jax.eval_shape(start))
    for path, leaf in shapes.items():
        array = exchange.take_array(arrays, path, leaf.shape, dtype)
        if array is not None and array.shape != leaf.shape:
            raise InputError(
                f"{weights.source} has {path} of {list(array.shape)}, and these options need {list(leaf.shape)}: leave "
                "out the option that changes the shapes of weights"
            )
        if array is not None:
            params[path] = jnp.asarray(array)
    if absent := sorted(shapes.keys() - params.keys()):
        summary = ", ".join(f"{path} {list(shapes[path].shape)}" for path in absent[:3])
        print(f"note: initialized, as no weights have them: {summary} ({len(absent)})", file=sys.stderr)
        fresh = jax.jit(lambda: {path: leaf for path, leaf in exchange.flat(start()).items() if path in absent})()
        params |= {path: leaf.astype(dtype) for path, leaf in fresh.items()}
    if arrays:
        print(f"note: not used with these options: {', '.join(sorted(arrays)[:3])} ({len(arrays)})", file=sys.stderr)
    return exchange.nested(params)
