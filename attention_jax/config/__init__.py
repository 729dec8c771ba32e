"""Typed configurations: frozen dataclasses, one per dataset and one per model family, without computation.

A `Config` is generic in its data and its model, so that the command line of an experiment has exactly its options:
`Config[Dates, LuongSeq2seq]` has `--data.reverse-source` and `--model.hidden-size`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Generic, Literal, TypeVar

from attention_jax.config.data import (
    Addition,
    Algorithmic,
    Corpus,
    Dates,
    FraEng,
    Images,
    LabeledFile,
    MarkovChains,
    ModularAddition,
    Multi30k,
    Reverse,
    Scan,
    Shakespeare,
    Streamed,
    TextFile,
    TextPairs,
    TimeMachine,
)
from attention_jax.config.fields import (
    OptionInfo,
    info_of,
    option,
    option_name,
    parse_pattern,
    walk,
)
from attention_jax.config.models import (
    SCORES,
    VIT_SIZES,
    AttentionSeq2seqConfig,
    BahdanauConfig,
    DeepOutputConfig,
    GNMTConfig,
    LanguageModelConfig,
    LuongConfig,
    LuongSeq2seqConfig,
    MaskedLanguageModelConfig,
    NTMConfig,
    PeekySeq2seqConfig,
    RecurrentLanguageModelConfig,
    Score,
    Seq2seqConfig,
    StackedLSTMConfig,
    TextClassifierConfig,
    TransformerConfig,
    TranslatorConfig,
    ViTConfig,
)
from attention_jax.config.options import (
    DataOptions,
    ModelOptions,
    OneOf,
    Options,
    build_from_name,
    code_paths,
    import_object,
    kind_name,
    model_name,
    type_from_name,
)
from attention_jax.errors import InputError

DataConfig = TypeVar("DataConfig")
ModelConfig = TypeVar("ModelConfig")
DecodeConfig = TypeVar("DecodeConfig")


@dataclass(frozen=True)
class Optim(Options):
    """The optimizer and its learning-rate schedule (attention_jax/train/optimizer.py)."""

    section: ClassVar[str] = "optim"

    name: Annotated[str, OneOf(("adam", "adamw", "sgd", "rmsprop", "lion", "muon", "adafactor"))] = "adam"
    """The optimizer. package.file:name is a function that returns an optax.GradientTransformation, called with those of
    b1, b2, eps and momentum that it takes, such as optax:scale_by_yogi; the other options apply to it, too.
    """
    learning_rate: float = option(1e-3, above=0, traced=True)
    """Peak learning rate, reached after `warmup_steps`."""
    schedule: Annotated[str, OneOf(("constant", "warmup_cosine", "inverse_sqrt"))] = "constant"
    """Learning rate at step s, from 1, of S, after a linear warm-up of w steps to the peak r: r (constant);
    r (1 + cos(pi (s - w) / (S - w))) / 2 (warmup_cosine); r sqrt(w / s) (inverse_sqrt). package.file:name is a function
    of (these options, S) that returns an optax schedule: a function from the step, from 0, to the learning rate.
    """
    warmup_steps: int = option(0, traced=True)
    """Optimizer steps in which the learning rate rises linearly from 0 to its peak."""
    clip_norm: float = option(0.0, traced=True)
    """Clip gradients to this global norm; 0 does not clip."""
    clip_value: float = 0.0
    """Clip each entry of the gradients to between this and its negative, before `clip_norm`; 0 does not clip."""
    weight_decay: float = option(0.0, traced=True)
    """sgd and adam add it times the parameters to the gradient (L2 regularization); the others subtract it times the
    learning rate and the parameters (decoupled, Loshchilov & Hutter 2019).
    """
    decayed: Literal["all", "kernels"] = "all"
    """Parameters with weight decay: all, or only the weights of linear maps and convolutions (no biases, norms,
    embeddings, positions, or parameters of scores).
    """
    rates: tuple[str, ...] = ()
    """REGEX=FACTOR ...: multiply the learning rate by a factor where a regular expression matches the whole path of a
    parameter, such as 'encoder/.*=0.1'; the first match applies, and 0 freezes: no gradient, decay or part in a norm.
    """
    decays: tuple[str, ...] = ()
    """REGEX=FACTOR ...: multiply weight decay by a factor in the same way; `decayed` is for parameters that no pattern
    matches.
    """
    momentum: float = option(0.0, below=1, traced=True)
    """Momentum of sgd, rmsprop and muon; 0 is 0.95 for muon."""
    b1: float = option(0.9, below=1, traced=True)
    """Decay of the first moment per step (adam, adamw, lion)."""
    b2: float = option(0.999, below=1, traced=True)
    """Decay of the second moment per step (adam, adamw, rmsprop; lion: of its moment)."""
    eps: float = option(1e-8, traced=True)
    """Constant that is added to the denominator of an update (adam, adamw, rmsprop, muon)."""
    moment_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the first moment of adam, adamw, lion and muon; the second, which bfloat16 would stop from growing, is
    float32.
    """

    def __post_init__(self):
        super().__post_init__()
        for option_with_patterns, patterns in (("--optim.rates", self.rates), ("--optim.decays", self.decays)):
            for text in patterns:
                parse_pattern(option_with_patterns, text)
        if self.decays and isinstance(self.weight_decay, int | float) and not self.weight_decay:
            raise InputError("--optim.decays multiplies --optim.weight-decay, which must not be 0; got 0.0")


@dataclass(frozen=True)
class Train(Options):
    """The training loop (attention_jax/train/loop.py)."""

    section: ClassVar[str] = "train"

    batch_size: int = option(128, at_least=1)
    """Examples per optimizer step, over all devices."""
    total_epochs: int = option(10, at_least=1, smoke=1, resumable=True)
    """Passes over the training data."""
    max_steps: int = option(0, smoke=2, unlimited=True, resumable=True)
    """Stop after this many optimizer steps; 0 has no limit."""
    seed: int = option(0, at_most=2**32 - 1)
    """Seed of the initial parameters, the order of examples, dropout and augmentation."""
    init_weights: str = ""
    """Begin with these weights: a file (`launch.py import --help`) or a run; parameters that do not fit are initialized
    at random."""
    init_range: float = 0.0
    """Draw the initial values of all matrices, embeddings included, uniformly from between this and its negative; 0
    leaves them to the model."""
    init_linear: Literal["model", "biases", "all", "normal"] = "model"
    """Initial values of linear maps instead of the model's, with r = 1 / sqrt(number of inputs). biases: the biases
    from U(-r, r), as in PyTorch; all: kernels and biases from it, those in the score of a recurrent model included;
    normal: all kernels, those of recurrent layers included, from N(0, r^2), not truncated."""
    steps_per_call: int = option(32, at_least=1)
    """Optimizer steps per call of the compiled program, which scans them; 1 with buckets of several lengths."""
    keep_last: int = option(1, resumable=True)
    """Number of checkpoints to keep besides the best one."""
    save_minutes: float = option(10.0, resumable=True)
    """Minutes after which a checkpoint is written within an epoch, in the background; 0 writes them after epochs only.
    """
    best_metric: str = "valid.loss"
    """The metric that decides the best checkpoint (and patience), of the validation or training data; one called loss,
    perplexity, error or bits is minimized. Of equal epochs the best has the lower loss of that split, or comes first.
    Give train.loss if there are no validation data. Of several metrics with commas between them, the best epoch is the
    last one that was at least as good as all before it in every metric.
    """
    eval_mean: Literal["examples", "batches", "sorted-batches"] = "examples"
    """Evaluate losses, accuracies and perplexities as those of all held-out examples, or as the mean of those of
    batches of `batch_size` examples: the last batch, which may be smaller, then weighs as much as the others. Batches
    are in the order of the data, or sorted by the lengths of source and target, as torchtext does.
    """
    patience: int = option(0, resumable=True)
    """Early stopping: stop after this many epochs without a better `best_metric`; of several metrics, without one that
    was at least as good as in all epochs before. 0 never stops early.
    """
    min_delta: float = option(0.0, resumable=True)
    """How much better than the best before an epoch's `best_metric` must be for `patience` to count it."""
    use_best: bool = option(False, resumable=True)
    """End with the best checkpoint's parameters rather than the last ones."""
    average_last: int = option(0, resumable=True)
    """End with the mean of the parameters after the last N epochs; 0 does not average."""
    loss: Annotated[str, OneOf(("cross_entropy",))] = "cross_entropy"
    """The training loss of models that choose among classes or tokens. package.file:name is a function of (logits,
    targets, mask, label_smoothing) that returns (sum, count), as attention_jax.ops.losses:masked_cross_entropy does.
    """
    label_smoothing: float = option(0.0, below=1, traced=True)
    """Probability e spread uniformly over all V classes: the target is (1 - e) onehot + e / V (Szegedy et al. 2016)."""
    matmul_precision: Literal["default", "bfloat16", "tensorfloat32", "float32"] = "default"
    """Value of `jax_default_matmul_precision` while training; "bfloat16" also applies to a CPU, in matrix products with
    weights (ops/precision.py).
    """
    accumulation_steps: int = option(1, at_least=1)
    """Divide a batch into N micro-batches, computed one after another: less memory, the same gradient. Dropout and
    augmentation have other random numbers for each, so with them N changes a run.
    """
    shard_parameters: bool = False
    """Divide parameters of 4 MiB or more and their moments over the devices (FSDP, ZeRO), instead of a copy on each:
    less memory, more traffic, the same numbers as without, dropout included.
    """
    parallel: Literal["pmap", "jit"] = option("pmap", resumable=True)
    """Train copies of the parameters on several devices by jax.pmap, or by jax.jit over a mesh, with the same bits;
    sharded parameters always use jit.
    """
    log_attention: int = option(0, unlimited=True, resumable=True)
    """Log the largest logit, the entropy and the weight of the first token of each layer and head every N steps, on one
    batch of the training data; 0 does not.
    """
    log: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = option((), resumable=True)
    """Also write the metrics for these (attention_jax/train/sinks.py); the runs of a sweep do so, too."""


@dataclass(frozen=True)
class Decode(Options):
    """Decoding options of the evaluation (attention_jax/decode.py)."""

    section: ClassVar[str] = "decode"

    beam_size: int = option(1, at_least=1)
    """Hypotheses of beam search; 1 is greedy decoding."""
    length_penalty: Literal["gnmt", "simple", "none"] = "gnmt"
    """Divisor of the log-probability of a hypothesis of n tokens: ((5 + n) / 6)^alpha (gnmt, Wu et al. 2016, eq. 14),
    n^alpha (simple), or 1.
    """
    alpha: float = 0.6
    """Exponent of the length penalty."""
    max_length: int = option(0, at_most=100_000, smoke=4, unlimited=True)
    """Longest output in tokens, at most 100,000; 0 is 1.5 times the longest training or validation target."""
    batch_size: int = option(128, at_least=1)
    """Sentences per batch of decoding."""


@dataclass(frozen=True)
class Sampling(Options):
    """Sampling options of language models (attention_jax/sampling.py)."""

    section: ClassVar[str] = "decode"

    length: int = option(300, smoke=8)
    """Number of tokens to generate."""
    temperature: float = 0.7
    """Sample tokens from softmax(logits / temperature); 0 takes the most probable one."""
    top_k: int = 0
    """Sample from this many of the most probable tokens (top-k); 0 is all."""
    top_p: float = option(1.0, above=0, at_most=1)
    """Sample from the fewest of the most probable tokens whose probabilities add up to this (nucleus sampling)."""
    seed: int = option(0, at_most=2**32 - 1)
    """Seed of sampling."""


@dataclass(frozen=True)
class Generation(Sampling):
    """Options of what a pretrained language model writes (pretrained/load.py)."""

    length: int = option(20, at_least=1, smoke=8)
    """The largest number of tokens to generate; an end-of-text token ends a text before."""
    temperature: float = option(0.0, at_least=0)
    """Sample tokens from softmax(logits / temperature); 0 takes the most probable one."""
    repetition_penalty: float = option(1.0, above=0)
    """Divide positive logits of tokens that are in the text by this, and multiply negative ones."""


@dataclass(frozen=True)
class Config(Options, Generic[DataConfig, ModelConfig, DecodeConfig]):
    """All settings of a run; written to its directory as config.json."""

    name: str
    """Name of the experiment; runs are written to runs/NAME."""
    data: DataConfig
    """Options of the dataset."""
    model: ModelConfig
    """Options of the model."""
    optim: Optim = field(default_factory=Optim)
    """Options of the optimizer."""
    train: Train = field(default_factory=Train)
    """Options of the training loop."""
    decode: DecodeConfig = None
    """`Decode` for models that translate or solve, `Sampling` for those that continue a text."""

    def __post_init__(self):
        none = type(None)
        required_types = {"name": (str,), "data": (DataOptions, none), "model": (ModelOptions, none), "optim": (Optim,)}
        for name, kinds in (required_types | {"train": (Train,), "decode": (Decode, Sampling, none)}).items():
            value = getattr(self, name)
            if not isinstance(value, kinds):
                raise InputError(f"a configuration needs as its {name} a {kinds[0].__name__}, got {value!r}")
        if self.train.loss != "cross_entropy" and self.model is not None and self.model.custom_loss:
            kind = kind_name(type(self.model))
            raise InputError(
                f"--train.loss must be cross_entropy for {kind}, whose loss is fixed; got {self.train.loss}"
            )
        super().__post_init__()


@dataclass(frozen=True)
class Grid:
    """A table of measured numbers under the claims of an experiment: one line for each variant, without verdicts."""

    caption: str
    columns: dict[str, str]
    """{column: metric}"""
    variants: tuple[str, ...]
    minus: str | None = None
    """Show the differences to this variant, seed by seed."""
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Columns of text before the numbers: {column: {variant: text}}."""


def concrete(config: Config) -> type:
    """Return the type of `config` with its data and model types, from which tyro reads the options."""
    return Config[type(config.data), type(config.model), type(config.decode)]


def replace(config, **changes):
    """A copy of `config` with dotted fields changed: `replace(c, **{"model.hidden_size": 64, "train.seed": 1})`.

    >>> replace(Config("x", None, None), **{"optim.learning_rate": 0.1}).optim.learning_rate
    0.1
    """
    for path, value in changes.items():
        head, _, subpath = path.partition(".")
        if head not in {f.name for f in dataclasses.fields(config)}:
            raise ValueError(f"{type(config).__name__} has no field {head!r}")
        new = replace(getattr(config, head), **{subpath: value}) if subpath else value
        config = dataclasses.replace(config, **{head: new})
    return config


def smoke_config(config: Config) -> Config:
    """`config` for a run of seconds: options that have a `smoke` size are no larger than it.

    >>> small = smoke_config(Config("x", Dates(), LuongSeq2seqConfig(embed_size=4), decode=Decode()))
    >>> small.data.examples, small.model.hidden_size, small.model.embed_size, small.train.max_steps
    (1000, 8, 4, 2)
    """
    larger = lambda info, value: value > info.smoke or (value == 0 and info.unlimited)
    return replace(
        config, **{name: info.smoke for name, info, value in walk(config) if info.smoke and larger(info, value)}
    )


def to_json(config) -> dict:
    """A dataclass as plain values, each nested one with its type's name, for config.json."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return {"type": kind_name(type(config))} | {
        k: to_json(v) if dataclasses.is_dataclass(v) else v for k, v in values.items()
    }


def from_json(values: dict):
    """Return the dataclass that `to_json` wrote. Raises ValueError naming an unknown type or field.

    A type from outside of this package is imported, which runs its code: call `foreign_code` first for values from an
    untrusted source.

    >>> from_json(to_json(Config("x", Dates(), LuongSeq2seqConfig()))) == Config("x", Dates(), LuongSeq2seqConfig())
    True
    """
    kind = type_from_name(values.get("type", ""))
    unknown = set(values) - {f.name for f in dataclasses.fields(kind)} - {"type"}
    if unknown:
        raise ValueError(f"{kind.__name__} has no field {sorted(unknown)[0]!r}")

    def value(x):
        return (
            from_json(x) if isinstance(x, dict) and "type" in x else tuple(map(value, x)) if isinstance(x, list) else x
        )

    return kind(**{k: value(v) for k, v in values.items() if k != "type"})


def foreign_code(values) -> set[str]:
    """The import paths ("package.file:name") outside of this package that the values of a config.json name, except for
    types that this process has imported already, and for functions of optax.

    >>> sorted(foreign_code({"type": "evil:Thing", "model": {"type": "ViTConfig", "score": "evil:Dot"}, "name": "a:b"}))
    ['evil:Dot', 'evil:Thing']
    """
    if isinstance(values, list):
        return set().union(*map(foreign_code, values))
    if not isinstance(values, dict):
        return set()
    paths = {str(values.get("type", ""))} - Options.kinds.keys() | code_paths(values)
    trusted_prefixes = ("attention_jax.", "optax:", "optax.contrib:")
    foreign = {path for path in paths if ":" in path and not path.startswith(trusted_prefixes)}
    return foreign.union(*map(foreign_code, values.values()))


def check_trusted(values, path, trust_code: bool = False, like: Config | None = None):
    """Raise InputError if the values of the file `path` name foreign code, which `from_json` and a model would import,
    unless the configuration `like` names it, too, or `trust_code` is set."""
    try:
        foreign = foreign_code(values) - (foreign_code(to_json(like)) if like else set())
    except RecursionError as error:
        raise InputError(f"{path} is damaged: it is nested too deep; put it back, or train again") from error
    if foreign and not trust_code:
        raise InputError(
            f"{path} names code from outside of attention_jax, {', '.join(sorted(foreign))}, which would be run: if "
            "you know whose it is, add --trust-code, or trust_code=True in Python"
        )


def differences(old, new, prefix: str = "") -> dict[str, tuple]:
    """Dotted names of the fields in which two configurations differ, with both values.

    >>> differences(Optim(), Optim(learning_rate=0.1))
    {'learning_rate': (0.001, 0.1)}
    """
    if type(old) is not type(new):
        return {prefix.rstrip("."): (type(old).__name__, type(new).__name__)}
    changed = {}
    for f in dataclasses.fields(old):
        a, b = getattr(old, f.name), getattr(new, f.name)
        if dataclasses.is_dataclass(a):
            changed |= differences(a, b, f"{prefix}{f.name}.")
        elif a != b:
            changed[prefix + f.name] = (a, b)
    return changed


def check_selection(train: Train):
    """Raise InputError if a test split would decide which checkpoint of a run is the best.

    >>> check_selection(Train(best_metric="valid.loss"))
    >>> check_selection(Train(best_metric="valid.bleu,test.loss"))
    Traceback (most recent call last):
    attention_jax.errors.InputError: --train.best-metric must be of validation or training data, ...; got ...,test.loss
    """
    if any(name.strip().startswith("test") for name in train.best_metric.split(",")):
        raise InputError(
            "--train.best-metric must be of validation or training data, such as valid.loss or train.loss, as a test "
            f"split selects no checkpoint; got {train.best_metric}"
        )
