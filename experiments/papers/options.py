"""The options of the models of this directory, of their data, and of studies: imported with the experiments, without
JAX.

Each names its Flax module, task and loader by import path, as docs/own_training.md says; config.json names the class
itself that way: "experiments.papers.options:CCTConfig".
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from attention_jax.config import DataOptions, DeepOutputConfig, ModelOptions, OneOf, Options, Score, option
from attention_jax.config.models import AttentionOptions, HeadScore, NormalizerName, TransformerLayers, rate
from attention_jax.errors import InputError


@dataclass(frozen=True)
class CCTConfig(TransformerLayers):
    """Compact Convolutional Transformer (experiments/papers/cct.py); the defaults are CCT-2/3x2."""

    module: ClassVar[str] = "experiments.papers.cct:CCT"
    task: ClassVar[str] = "attention_jax.tasks.vision:VisionTask"

    num_conv_layers: int = option(2, at_least=1)
    """Convolutional layers of the tokenizer, each of which halves the image."""
    kernel_size: int = option(3, at_least=1)
    """Side of the convolution kernels, in pixels."""
    hidden_size: int = option(128, at_least=1, smoke=8)
    """Width of the residual stream."""
    mlp_dim: int = option(128, at_least=1, smoke=16)
    """Hidden units of the feed-forward layers."""
    num_layers: int = option(2, at_least=1)
    """Transformer layers."""
    num_heads: int = option(2, at_least=1, smoke=2)
    """Attention heads of a layer; they divide hidden_size."""
    position_embedding: Annotated[str, OneOf(("learned", "none"))] = "learned"
    """Position encoding of the tokens, or package.file:Class of yours: a bias of the scores, or a Flax module."""
    dropout: float = rate(0.0, traced=True)
    """Dropout rate of the embeddings and of the feed-forward layers."""
    attention_dropout: float = rate(0.1, traced=True)
    """Dropout rate of the attention weights, after normalization."""
    stochastic_depth: float = rate(0.1)
    """Probability p of skipping the last of L layers for an example; layer i, from 0, has p i / (L - 1)."""
    dtype: Literal["float32", "bfloat16"] = option("float32", training_only=True)
    """Type of the computation; parameters are float32."""


@dataclass(frozen=True)
class ResNetConfig(ModelOptions):
    """Residual network with group normalization (experiments/papers/resnet.py); the defaults are ResNet-18's
    shape."""

    module: ClassVar[str] = "experiments.papers.resnet:ResNet"
    task: ClassVar[str] = "attention_jax.tasks.vision:VisionTask"

    widths: tuple[int, ...] = option((64, 128, 256, 512), at_least=1)
    """Channels of each stage; every stage but the first halves the image."""
    blocks_per_stage: int = option(2, at_least=1)
    """Residual blocks of a stage."""
    stem: Literal["small", "large"] = "small"
    """First layer: a 3x3 convolution (small images), or a 7x7 convolution and pooling, both of stride 2."""
    num_groups: int = option(16, at_least=1)
    """Groups of the group normalization; they divide every width."""
    dropout: float = rate(0.0, traced=True)
    """Dropout rate of the input of the classifier."""
    dtype: Literal["float32", "bfloat16"] = option("float32", training_only=True)
    """Type of the computation; parameters are float32."""


@dataclass(frozen=True)
class ConvolutionalConfig(ModelOptions):
    """Convolutional sequence to sequence, Gehring et al. 2017 (experiments/papers/convolutional.py)."""

    module: ClassVar[str] = "experiments.papers.convolutional:ConvSeq2seq"
    task: ClassVar[str] = "attention_jax.tasks.seq2seq:Seq2seqTask"

    hidden_size: int = option(512, at_least=1, smoke=8)
    """Channels of the convolutions."""
    embed_size: int = option(256, at_least=1, smoke=8)
    """Dimensions of a token embedding."""
    num_layers: int = option(10, at_least=1)
    """Layers of the encoder, and of the decoder."""
    kernel_size: int = option(3, at_least=1)
    """Width of a convolution, in tokens; odd."""
    max_length: int = option(128, at_least=1)
    """Longest source and target, in tokens: rows of the table of learned positions."""
    normalizer: NormalizerName = "softmax"
    """Normalizer of the scores: softmax, softmax(0) with a sink, learned_sink, ssmax, sigmoid(-4), learned_sigmoid,
    relu, softpick, sparsemax, entmax(1.5), learned_entmax, top_k(8), stick_breaking, or package.file:Class of yours."""
    dropout: float = rate(0.25, traced=True)
    """Dropout rate of the embeddings and of the input of every convolution."""

    @property
    def longest_input(self) -> int | None:
        return self.max_length


@dataclass(frozen=True)
class PointerNetworkConfig(ModelOptions):
    """Pointer Networks, Vinyals et al. 2015 (experiments/papers/pointer.py)."""

    module: ClassVar[str] = "experiments.papers.pointer:PointerNetwork"
    task: ClassVar[str] = "experiments.papers.pointer:PointingTask"
    custom_loss: ClassVar[bool] = True

    hidden_size: int = option(128, at_least=1, smoke=8)
    """Units of the encoder, of the decoder and of the score."""


@dataclass(frozen=True)
class ConvexHulls(DataOptions):
    """Random points and their convex hulls (experiments/papers/pointer.py)."""

    loader: ClassVar[str] = "experiments.papers.pointer:load"

    min_points: int = option(5, at_least=3)
    """The minimum number of points of a set."""
    max_points: int = option(10, at_least=3)
    """The maximum number of points of a set."""
    examples: int = option(200_000, at_least=1, smoke=1000, unlimited=True)
    """Number of training sets."""
    held_out: int = option(10_000, at_least=1)
    """Point sets for validation, and for each test set: with the minimum and with the maximum number of points."""


@dataclass(frozen=True)
class GraphAttentionConfig(ModelOptions):
    """Graph attention networks of two layers, Velickovic et al. 2018 (experiments/papers/graph_attention.py)."""

    module: ClassVar[str] = "experiments.papers.graph_attention:GraphAttention"
    task: ClassVar[str] = "experiments.papers.graph_attention:NodeTask"
    custom_loss: ClassVar[bool] = True

    num_heads: int = option(8, at_least=1, smoke=2)
    """Attention heads of the hidden layer; the output layer has one."""
    hidden_size: int = option(8, at_least=1, smoke=8)
    """Units of each head of the hidden layer."""
    score: HeadScore = "attention_jax.ops.scores:LeakySum"
    """dot, scaled_dot, general, concat, additive, cosine, gaussian, mean, or package.file:Class (here the paper's)."""
    dropout: float = rate(0.6, traced=True)
    """Dropout rate of the inputs of both layers and of the projected values."""
    attention_dropout: float = rate(0.6, traced=True)
    """Dropout rate of the attention weights, after normalization."""
    l2: float = 5e-4
    """Weight of the L2 penalty: this times half the sum of all squared parameters is added to the loss."""


@dataclass(frozen=True)
class Citations(DataOptions):
    """A graph of papers that cite each other, to predict the subject of each
    (experiments/papers/graph_attention.py)."""

    loader: ClassVar[str] = "experiments.papers.graph_attention:load"

    path: str = option("", user_data=True)
    """A cora.npz, or a file of the same arrays, which experiments/papers/graph_attention.py describes."""
    num_nodes: int = 0
    """Number of nodes of a generated graph if no file is given; 0 requires a file."""
    neighbors: bool = True
    """Let nodes attend to their neighbors and themselves; otherwise only to themselves."""


@dataclass(frozen=True)
class Activations(DataOptions):
    """Activations of a model's tokens in files, as `attention_jax.interpret.activations` writes them."""

    loader: ClassVar[str] = "experiments.papers.sparse_autoencoder:load"

    path: str = option("", user_data=True)
    """The directory of the files; without one, generated sums of directions."""
    site: str = "decoder.14.residual_out"
    """The site that the features are of."""
    target: str = ""
    """The site that is computed from it, of a transcoder; none is the same site."""
    held_out: float = option(0.1, above=0, below=1)
    """Share of the texts to validate on."""
    skip_first: int = option(1, at_least=0)
    """Leave out this many first tokens of each text: that of the attention sink has an activation of its own size."""


@dataclass(frozen=True)
class SparseAutoencoderConfig(ModelOptions):
    """A sparse autoencoder or transcoder (experiments/papers/sparse_autoencoder.py)."""

    module: ClassVar[str] = "experiments.papers.sparse_autoencoder:SparseAutoencoder"
    task: ClassVar[str] = "experiments.papers.sparse_autoencoder:SparseAutoencoderTask"
    custom_loss: ClassVar[bool] = True

    activation: Literal["topk", "jumprelu"] = "topk"
    """What makes features sparse."""
    largest: int = option(2048, at_least=1, smoke=128)
    """Features in the arrays of parameters."""
    size: float = option(2048, at_least=1, traced=True, smoke=128)
    """Features that may be active, at most `largest`; a number, so that a population may differ in it."""
    k: int = option(32, at_least=1, smoke=4)
    """Active features of a token, of topk."""
    penalty: float = option(1e-3, traced=True, training_only=True)
    """Loss of an active feature, of jumprelu."""
    width: float = option(0.03, above=0)
    """Width of the rectangle in the pseudo-derivatives of jumprelu, epsilon."""
    first_threshold: float = option(0.03, above=0)
    """The thresholds of jumprelu at the start."""

    def __post_init__(self):
        if isinstance(self.size, int | float) and not max(1, self.k) <= self.size <= self.largest:
            raise InputError(
                f"--model.size must be from --model.k {self.k} to --model.largest {self.largest}, got {self.size}"
            )
        super().__post_init__()


@dataclass(frozen=True)
class SutskeverConfig(DeepOutputConfig):
    """No attention: Sutskever et al. 2014, Cho et al. 2014 (experiments/papers/sutskever.py)."""

    module: ClassVar[str] = "experiments.papers.sutskever:Sutskever"
    context_input: Literal["start", "every_step"] = "start"
    """Where the encoder's last state goes: into the decoder's initial state, or into the input of every step and of the
    readout as well."""


@dataclass(frozen=True)
class ConditionalGRUConfig(AttentionOptions, DeepOutputConfig):
    """Attention between two transitions: Firat & Cho 2016 (experiments/papers/conditional_gru.py)."""

    module: ClassVar[str] = "experiments.papers.conditional_gru:ConditionalGRU"
    readout: Literal["state", "linear", "tanh", "maxout"] = "tanh"
    """Layer between the decoder state and the output layer; state has none."""
    score: Score = "additive"


@dataclass(frozen=True)
class Influence(DataOptions):
    """The linear system of experiments/influence_balancing.py."""

    updates: int = 3_000
    """Parameter updates per run."""


@dataclass(frozen=True)
class Regression(DataOptions):
    """Points of a curve with noise, for kernel regression (experiments/nadaraya_watson.py)."""

    points: int = 40
    """Training points."""
    repetitions: int = 200
    """Datasets per size in the consistency experiment."""


@dataclass(frozen=True)
class Samples(DataOptions):
    """Sample size of an analysis."""

    samples: int = 100_000
    """Random samples to average over."""


@dataclass(frozen=True)
class Sizes(DataOptions):
    """Largest sizes of experiments/complexity.py."""

    max_length: int = 512
    """Largest sequence length, in tokens."""
    max_width: int = 512
    """Largest width of queries, keys and values."""


@dataclass(frozen=True)
class TwoBooks(DataOptions):
    """Two books in windows of tokens (experiments/heads_of_a_real_model.py)."""

    time_machine: str = option("", user_data=True)
    """The published timemachine.txt (.gz, too), or its directory; empty downloads it."""
    shakespeare: str = option("", user_data=True)
    """The published input.txt of tiny Shakespeare (.gz, too), or its directory; empty downloads it."""
    windows: int = option(8, at_least=2, smoke=2)
    """Windows of each text on which losses are measured."""
    window_tokens: int = option(512, at_least=16, smoke=16)
    """Tokens of a window, the first of which is given."""

    @property
    def downloads(self) -> str:
        return "" if self.time_machine and self.shakespeare else "time_machine/d2l"


@dataclass(frozen=True)
class Books(TwoBooks):
    """Two books, and windows of them to tune on (experiments/softmax_in_a_real_model.py)."""

    tuning_steps: int = option(100, at_least=1, smoke=2)
    """Steps of tuning, with one window of half as many tokens each."""


OF_STUDIES = (Influence, Regression, Samples, Sizes, TwoBooks, Books)
Options.kinds |= {kind.__name__: kind for kind in OF_STUDIES}  # the names in config.json of recorded runs
