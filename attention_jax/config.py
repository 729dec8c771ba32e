"""Typed configurations: frozen dataclasses, one per dataset and one per model family, and nothing that computes.

A `Config` is generic in its data and its model, so that the command line of an experiment shows exactly the options
that experiment has: `Config[Dates, Recurrent]` has `--data.reverse-source` and `--model.hidden-size`.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from attention_jax import InputError

DataConfig = TypeVar("DataConfig")
ModelConfig = TypeVar("ModelConfig")
DecodeConfig = TypeVar("DecodeConfig")


@dataclass(frozen=True)
class Optim:
    """The optimizer and its learning-rate schedule (attention_jax/train/optimizer.py)."""

    name: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    learning_rate: float = 1e-3
    """Peak learning rate."""
    schedule: Literal["constant", "warmup_cosine", "inverse_sqrt"] = "constant"
    warmup_steps: int = 0
    clip_norm: float = 0.0
    """Clip gradients to this global norm; 0 does not clip."""
    weight_decay: float = 0.0
    momentum: float = 0.0
    """Momentum of sgd and rmsprop."""
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8


@dataclass(frozen=True)
class Train:
    """The loop (attention_jax/train/loop.py). Batch size is global: it is divided over the devices."""

    batch_size: int = 128
    total_epochs: int = 10
    max_steps: int = 0
    """Stop after this many optimizer steps; 0 has no limit."""
    seed: int = 0
    steps_per_call: int = 32
    """Train steps scanned inside one compiled call."""
    keep_last: int = 1
    """Checkpoints kept besides the best one."""
    best_metric: str = "valid.loss"
    """The metric that decides the best checkpoint (and patience); names with "loss" or "perplexity" are minimised."""
    patience: int = 0
    """Stop after this many epochs without a better `best_metric`; 0 never stops early."""
    use_best: bool = False
    """End with the best checkpoint's parameters rather than the last ones."""
    average_last: int = 0
    """End with the mean of the parameters after the last N epochs; 0 does not average."""
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class Decode:
    """How sequences are generated when a run is evaluated (attention_jax/decode.py)."""

    beam_size: int = 1
    """1 is greedy."""
    length_penalty: Literal["gnmt", "simple", "none"] = "gnmt"
    alpha: float = 0.6
    """Strength of the length penalty."""
    max_length: int = 0
    """Longest output in tokens; 0 is the longest reference plus a half."""
    batch_size: int = 128


@dataclass(frozen=True)
class Config(Generic[DataConfig, ModelConfig, DecodeConfig]):
    """Everything a run depends on; written to its directory as config.json."""

    name: str
    data: DataConfig
    model: ModelConfig
    optim: Optim = field(default_factory=Optim)
    train: Train = field(default_factory=Train)
    decode: DecodeConfig = None
    """`Decode` for models that generate sequences."""


def concrete(config: Config) -> type:
    """The type of `config` with its data and model types filled in, which is what tyro reads the options from."""
    return Config[type(config.data), type(config.model), type(config.decode)]


def replace(config, **changes):
    """A copy of `config` with dotted fields changed: `replace(c, **{"model.hidden_size": 64, "train.seed": 1})`.

    >>> replace(Config("x", None, None), **{"optim.learning_rate": 0.1}).optim.learning_rate
    0.1
    """
    for path, value in changes.items():
        head, _, rest = path.partition(".")
        if head not in {f.name for f in dataclasses.fields(config)}:
            raise ValueError(f"{type(config).__name__} has no field {head!r}")
        new = replace(getattr(config, head), **{rest: value}) if rest else value
        config = dataclasses.replace(config, **{head: new})
    return config


def to_json(config) -> dict:
    """A dataclass as plain values, each nested one with its type's name, for config.json."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return {"type": type(config).__name__} | {k: to_json(v) if dataclasses.is_dataclass(v) else v for k, v in values.items()}


def from_json(values: dict):
    """The dataclass that `to_json` wrote. Raises ValueError naming an unknown type or field.

    >>> from_json(to_json(Config("x", Dates(), Recurrent()))) == Config("x", Dates(), Recurrent())
    True
    """
    kind = globals().get(values.get("type", ""))
    if not dataclasses.is_dataclass(kind):
        raise ValueError(f"unknown configuration type {values.get('type')!r}")
    unknown = set(values) - {f.name for f in dataclasses.fields(kind)} - {"type"}
    if unknown:
        raise ValueError(f"{kind.__name__} has no field {sorted(unknown)[0]!r}")

    def value(x):
        return from_json(x) if isinstance(x, dict) and "type" in x else tuple(map(value, x)) if isinstance(x, list) else x

    return kind(**{k: value(v) for k, v in values.items() if k != "type"})


def differences(old, new, prefix: str = "") -> dict[str, tuple]:
    """Dotted names of the fields in which two configurations differ, with both values.

    >>> differences(Optim(), Optim(learning_rate=0.1))
    {'learning_rate': (0.001, 0.1)}
    """
    if type(old) is not type(new):
        return {prefix.rstrip("."): (type(old).__name__, type(new).__name__)}
    found = {}
    for f in dataclasses.fields(old):
        a, b = getattr(old, f.name), getattr(new, f.name)
        if dataclasses.is_dataclass(a):
            found |= differences(a, b, f"{prefix}{f.name}.")
        elif a != b:
            found[prefix + f.name] = (a, b)
    return found


def validate(config, prefix: str = ""):
    """Check the numbers of a configuration by what their names mean; raise InputError naming the option.

    Sizes and epochs are at least 1, a learning rate is positive, a rate of dropout or smoothing lies in [0, 1), nothing is negative.
    """
    for f in dataclasses.fields(config):
        value, option = getattr(config, f.name), "--" + (prefix + f.name).replace("_", "-")
        if dataclasses.is_dataclass(value):
            validate(value, f"{prefix}{f.name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if f.name.endswith(("_size", "total_epochs", "steps_per_call")) and value < 1:
                raise InputError(f"{option} must be at least 1, got {value}")
            if f.name == "learning_rate" and not 0 < value < float("inf"):
                raise InputError(f"{option} must be a positive number, got {value}")
            if f.name.endswith(("dropout", "label_smoothing")) and not 0 <= value < 1:
                raise InputError(f"{option} must be at least 0 and below 1, got {value}")
            if not value >= 0:
                raise InputError(f"{option} must not be negative, got {value}")


@dataclass(frozen=True)
class Claim:
    """One published (or aimed at) number, and what counts as having reproduced it.

    `metric` names a value of the run's result ("test.bleu"); `epoch` takes it from that epoch of the history instead of the
    final evaluation, `best` takes the best epoch. With several seeds the median is judged.
    """

    text: str
    metric: str
    published: float | None
    source: str
    variant: str = ""
    epoch: int | None = None
    best: bool = False
    at_least: float | None = None
    """Reproduced if the value is at least this ..."""
    at_most: float | None = None
    """... and at most this. With neither, the number is reported without a verdict."""
    beaten: float | None = None
    """Beaten from this value on (in the direction of improvement: upward if at_least is given, else downward)."""


# --- data -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dates:
    """Date conversion, "TUESDAY, SEPTEMBER 25, 1984" -> "1984-09-25"."""

    path: str = ""
    """A published date.txt or date.txt.gz; empty generates the data."""
    reverse_source: bool = False
    examples: int = 50_000
    """How many are generated; 9 of 10 train, 1 of 10 tests."""


@dataclass(frozen=True)
class Addition:
    """Addition of two numbers up to three digits as text, "16+75  " -> "_91  "."""

    path: str = ""
    """The book's addition.txt or addition.txt.gz; empty generates the data."""
    reverse_source: bool = False
    examples: int = 50_000


@dataclass(frozen=True)
class TextPairs:
    """What all corpora of sentence pairs have in common (attention_jax/data/translation.py)."""

    tokenizer: Literal["whitespace", "character", "words", "spacy", "bpe", "sentencepiece"] = "whitespace"
    """words: d2l's preprocessing; spacy: its rules, no model; bpe: ready-made merges; sentencepiece: trained on the data and cached."""
    lowercase: bool = False
    min_frequency: int = 1
    """Rarer training tokens are unknown."""
    vocabulary_size: int = 8_000
    """Pieces that sentencepiece trains."""
    joint_vocabulary: bool = False
    """One vocabulary for both languages."""
    reverse_source: bool = False
    max_length: int = 100
    """Most tokens of a sentence, its end mark counted."""
    overlong: Literal["error", "truncate", "drop"] = "truncate"
    """What happens to training pairs with a longer sentence; held-out ones are never dropped."""
    batch_tokens: int = 0
    """Tokens in a batch, padding counted (the longer side); 0: batches of train.batch_size sentences."""
    max_buckets: int = 4
    """Groups of similar length; each is a shape to compile."""


@dataclass(frozen=True)
class FraEng(TextPairs):
    """English-French sentences of tatoeba.org, as in d2l (attention_jax/data/fra_eng.py)."""

    path: str = ""
    """fra-eng.zip, fra.txt, or their directory; empty downloads."""
    split: Literal["d2l", "full"] = "full"
    """d2l: the first 512 pairs train, the next 128 validate. full: seeded, no source in two parts."""
    tokenizer: Literal["whitespace", "character", "words", "spacy", "bpe", "sentencepiece"] = "words"
    min_frequency: int = 2
    max_length: int = 30


@dataclass(frozen=True)
class Multi30k(TextPairs):
    """Image captions in English, German and French: WMT multimodal task 1 (attention_jax/data/multi30k.py)."""

    path: str = ""
    """Directory with raw/, tok/ or bpe/en-de/ in it (or such a directory); empty downloads."""
    source: Literal["en", "de", "fr"] = "de"
    target: Literal["en", "de", "fr"] = "en"
    form: Literal["raw", "tok", "bpe"] = "tok"
    """raw: plain text; tok: lower-cased, normalised, Moses tokens; bpe: tok with ready-made joint BPE of 10,000 merges (English and German)."""
    rows_of: int = 1
    """Above 1: in all splits, each pair occurs once alone and once in a row of 2 to this many pairs (the corpus itself has few long sentences)."""
    max_length: int = 80


@dataclass(frozen=True)
class Reverse(TextPairs):
    """Joey NMT's toy task: write a row of numbers backwards (attention_jax/data/reverse.py)."""

    examples: int = 50_000
    """Training pairs of 1 to 25 numbers; 1,000 pairs of 1 to 30 numbers validate, 1,000 test."""


@dataclass(frozen=True)
class Corpus(TextPairs):
    """Your own sentence pairs: two files with a sentence a line, or one with two columns (attention_jax/data/corpus.py)."""

    source_file: str = ""
    target_file: str = ""
    tsv_file: str = ""
    """A file of `source TAB target` lines, instead of the other two."""
    languages: tuple[str, str] = ("xx", "xx")
    """Codes of the two languages, for the spacy tokenizer; xx is any."""
    merges: str = ""
    """The merges of the bpe tokenizer (the format of subword-nmt)."""
    held_out_share: float = 0.02
    """This share of the sources validates and as much tests (at most 2,000 each)."""
    overlong: Literal["error", "truncate", "drop"] = "error"


@dataclass(frozen=True)
class Images:
    """Images with class labels, and how they are varied while training (attention_jax/data/images.py, ops/augment.py)."""

    dataset: Literal["digits", "fashion_mnist", "cifar10", "folder"] = "digits"
    path: str = ""
    """Directory of the dataset's published files (read once, then cached), or for "folder" of class/image.png; empty downloads."""
    pixels: int = 0
    """Resize to this many pixels a side; 0 keeps the files' size."""
    standardize: bool = False
    """Subtract the mean colour of the training images and divide by its deviation; otherwise pixels are 0 to 1."""
    validation: int = 0
    """Hold out this many training images; metrics are then also given for them."""
    examples: int = 0
    """Train on this many images only; 0 is all."""
    crop_padding: int = 0
    """Pad by this many pixels and crop at random."""
    flip: bool = False
    """Mirror left and right with probability 1/2."""
    auto_augment: bool = False
    """The AutoAugment policy for CIFAR-10: two of thirteen distortions an image."""
    erase: float = 0.0
    """Probability of erasing a random rectangle."""
    mixup: float = 0.0
    """Blend pairs of images by Beta(a, a); 0 does not."""
    cutmix: float = 0.0
    """Paste a rectangle of another image, its area by Beta(a, a); with mixup as well, each step draws one of the two."""


@dataclass(frozen=True)
class TimeMachine:
    """The characters of "The Time Machine" (attention_jax/data/timemachine.py): a-z and space, in windows of `steps` characters."""

    path: str = ""
    """The published timemachine.txt or timemachine.txt.gz; empty downloads it."""
    steps: int = 32
    """Characters a window predicts."""
    train_windows: int = 10_000
    """Windows that start at characters 0, 1, 2 ...; validation windows follow."""
    valid_windows: int = 5_000
    stride: int = 1
    """Characters from the start of one window to the start of the next."""


@dataclass(frozen=True)
class Algorithmic:
    """The tasks of the Neural Turing Machine paper, generated (attention_jax/data/algorithmic.py)."""

    task: Literal["copy", "repeat_copy", "associative_recall", "ngrams", "priority_sort"] = "copy"
    sequences: int = 50_000
    """How many different ones there are to train on."""
    epoch_sequences: int = 2_500
    """How many of them make an epoch: each epoch goes on where the last one stopped."""
    valid_sequences: int = 200


@dataclass(frozen=True)
class Influence:
    """The linear system of experiments/influence_balancing.py."""

    updates: int = 3_000


@dataclass(frozen=True)
class Regression:
    """Points of a curve with noise, for kernel regression (experiments/nadaraya_watson.py)."""

    points: int = 40
    repetitions: int = 200
    """Data sets for each size at which consistency is measured."""


@dataclass(frozen=True)
class Samples:
    """How many random numbers a study averages over."""

    samples: int = 100_000


@dataclass(frozen=True)
class Sizes:
    """The largest sequence length and width of experiments/complexity.py."""

    longest: int = 512
    widest: int = 512


# --- models ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recurrent:
    """Recurrent sequence-to-sequence models (attention_jax/models/seq2seq.py)."""

    kind: Literal["seq2seq", "peeky", "attention", "luong"] = "luong"
    cell: Literal["lstm", "gru"] = "lstm"
    hidden_size: int = 256
    embed_size: int = 16
    bidirectional: bool = False
    score: Literal["dot", "scaled_dot", "general", "concat", "additive", "cosine"] = "dot"


@dataclass(frozen=True)
class Translator:
    """Recurrent translation models; the defaults are Bahdanau's (attention_jax/models/translator.py names the other known ones)."""

    hidden_size: int = 512
    embed_size: int = 256
    cell: Literal["lstm", "gru"] = "gru"
    layers: int = 1
    """Of the encoder and of the decoder."""
    bidirectional: Literal["none", "first", "all"] = "all"
    """Which layers of the encoder read in both directions."""
    residual: bool = False
    layer_norm: bool = False
    """Normalise the encoder's annotations."""
    start_from: Literal["pass", "dense", "mean"] = "dense"
    """The decoder's first state: the encoder's last one, a dense layer of it, or of the annotations' mean."""
    attention: Literal["none", "last", "after", "before", "between", "feeding", "first_layer"] = "before"
    """Where attention meets the recurrence; "last" hands the encoder's last annotation to every step."""
    score: Literal["dot", "scaled_dot", "general", "concat", "additive", "cosine", "location", "mean"] = "additive"
    window: Literal["all", "monotonic", "predictive"] = "all"
    """Global attention, or Luong's local-m and local-p."""
    window_size: int = 10
    """Half-width D of the local windows, in tokens."""
    readout: Literal["state", "linear", "tanh", "maxout"] = "maxout"
    readout_size: int = 512
    readout_embedding: bool = True
    """The output layer also sees the embedded previous token."""
    tied: bool = False
    """Share the target's embeddings with the output layer."""
    embed_dropout: float = 0.0
    layer_dropout: float = 0.0
    """Between layers."""
    memory_dropout: float = 0.0
    """Of the encoder's annotations."""
    output_dropout: float = 0.0
    """Before the output layer."""


@dataclass(frozen=True)
class Convolutional:
    """Convolutional sequence to sequence, Gehring et al. 2017 (attention_jax/models/convolutional.py)."""

    hidden_size: int = 512
    embed_size: int = 256
    layers: int = 10
    """Of the encoder and of the decoder."""
    kernel_size: int = 3
    positions: int = 128
    """Longest source and target."""
    dropout: float = 0.25


@dataclass(frozen=True)
class Vit:
    """Vision Transformer (attention_jax/models/vit.py)."""

    patch_size: int = 2
    hidden_size: int = 64
    mlp_size: int = 128
    layers: int = 4
    heads: int = 4
    pool: Literal["token", "mean", "attention"] = "token"
    """What the classifier sees: a class token, the mean of all tokens, or attention with one learned query."""
    position: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    bias: bool = True
    """Biases in the four attention projections."""
    dropout: float = 0.0
    attention_dropout: float = 0.0
    stochastic_depth: float = 0.0
    """Probability of skipping the last block for an example; earlier blocks proportionally less."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What is computed in; parameters are float32."""


VIT_SIZES = {  # Dosovitskiy et al. 2021, table 1; S: Touvron et al. 2021, table 1
    "S": {"hidden_size": 384, "layers": 12, "heads": 6, "mlp_size": 1536},
    "B": {"hidden_size": 768, "layers": 12, "heads": 12, "mlp_size": 3072},
    "L": {"hidden_size": 1024, "layers": 24, "heads": 16, "mlp_size": 4096},
    "H": {"hidden_size": 1280, "layers": 32, "heads": 16, "mlp_size": 5120},
}


@dataclass(frozen=True)
class Cct:
    """Compact Convolutional Transformer (attention_jax/models/cct.py); the defaults are CCT-2/3x2."""

    convolutions: int = 2
    kernel_size: int = 3
    hidden_size: int = 128
    mlp_size: int = 128
    layers: int = 2
    heads: int = 2
    position: Literal["learned", "none"] = "learned"
    dropout: float = 0.0
    attention_dropout: float = 0.1
    stochastic_depth: float = 0.1
    dtype: Literal["float32", "bfloat16"] = "float32"


@dataclass(frozen=True)
class ResNet:
    """Residual network with group normalisation (attention_jax/models/resnet.py); the defaults are ResNet-18's shape."""

    widths: tuple[int, ...] = (64, 128, 256, 512)
    """Channels of each stage; every stage but the first halves the image."""
    blocks: int = 2
    """Residual blocks a stage."""
    stem: Literal["small", "large"] = "small"
    """A 3x3 convolution (small images), or 7x7 and pooling, both of stride 2."""
    groups: int = 16
    dropout: float = 0.0
    dtype: Literal["float32", "bfloat16"] = "float32"


@dataclass(frozen=True)
class Transformer:
    """Encoder-decoder Transformers (attention_jax/models/transformer.py); the defaults are the paper's base model."""

    encoder_layers: int = 6
    decoder_layers: int = 6
    width: int = 512
    """Of the residual stream, d_model."""
    heads: int = 8
    ffn: int = 2048
    """Hidden units of the feed-forward layers, d_ff."""
    key_width: int = 0
    """Per head, d_k; 0 means width / heads."""
    value_width: int = 0
    """Per head, d_v; 0 means width / heads."""
    norm: Literal["post", "pre"] = "post"
    activation: Literal["relu", "gelu"] = "relu"
    positions: Literal["none", "sinusoidal", "learned", "shaw", "t5", "alibi", "rotary"] = "sinusoidal"
    score: Literal["scaled_dot", "dot", "general", "additive", "concat", "cosine"] = "scaled_dot"
    use_bias: bool = True
    """Bias terms of the attention projections."""
    dropout: float = 0.1
    """Of embeddings and of every sub-layer's output."""
    attention_dropout: float = 0.0
    """Of attention weights."""
    ffn_dropout: float = 0.0
    """Of the feed-forward's hidden units."""
    tied: Literal["none", "output", "all"] = "none"
    """Share the target's embeddings with the output layer, or the source's too."""
    scale_embeddings: bool = True
    """Multiply embeddings by sqrt(width)."""
    output_bias: bool = True
    max_length: int = 512
    """Rows of a learned table of positions."""
    remat: bool = False
    """Compute each layer's activations again in the backward pass instead of keeping them."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What is computed in; parameters are float32."""


@dataclass(frozen=True)
class LanguageModel:
    """Decoder-only Transformers (attention_jax/models/language.py)."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    ffn: int = 512
    norm: Literal["post", "pre"] = "pre"
    activation: Literal["relu", "gelu"] = "gelu"
    positions: Literal["none", "sinusoidal", "learned", "shaw", "t5", "alibi", "rotary"] = "rotary"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    ffn_dropout: float = 0.0
    tied: bool = True
    max_length: int = 512
    remat: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"


@dataclass(frozen=True)
class NTM:
    """Neural Turing Machines (attention_jax/models/ntm.py); the defaults are the paper's for copying (tables 1 and 2)."""

    controller: Literal["lstm", "feedforward"] = "lstm"
    hidden_size: int = 100
    read_heads: int = 1
    write_heads: int = 1
    locations: int = 128
    width: int = 20
    """Numbers in a memory location."""
    shifts: int = 3
    """How many shifts a head chooses from: 3 means one back, stay, one forward."""
    memory_init: Literal["constant", "learned", "random"] = "constant"
    """What memory holds before the first step; random is drawn once and not trained."""


@dataclass(frozen=True)
class StackedLSTM:
    """The baseline of the Neural Turing Machine paper: LSTM layers and no other memory (table 3)."""

    layers: int = 3
    hidden_size: int = 256


@dataclass(frozen=True)
class RecurrentLanguageModel:
    """Character models of d2l chapters 9 and 10 (attention_jax/models/recurrent_lm.py)."""

    cell: Literal["rnn", "gru", "lstm"] = "rnn"
    hidden_size: int = 32
    dropout: float = 0.0
    """Of the hidden states that the output layer sees."""
    truncation: Literal["full", "truncated", "randomised"] = "full"
    """How far gradients go back within a window (attention_jax/ops/bptt.py)."""
    truncation_length: int = 8
    """truncated: the gradient is cut every so many steps; randomised: so many steps on average."""
