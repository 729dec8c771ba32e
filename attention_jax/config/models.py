"""One dataclass per model family: every option there is, written once; the family's Flax module holds it as
`options`."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from attention_jax.config.fields import option
from attention_jax.config.options import ModelOptions, OneOf

SCORES = {
    "dot": "attention_jax.ops.scores:Dot",
    "scaled_dot": "attention_jax.ops.scores:ScaledDot",
    "general": "attention_jax.ops.scores:Bilinear",
    "concat": "attention_jax.ops.scores:Concat",
    "additive": "attention_jax.ops.scores:Additive",
    "cosine": "attention_jax.ops.scores:Cosine",
    "gaussian": "attention_jax.ops.scores:Gaussian",
    "location": "attention_jax.ops.biases:Location",
    "mean": "attention_jax.ops.scores:Constant",
}
"""Scores by name; "mean" gives every key the same weight."""

Score = Annotated[str, OneOf(tuple(SCORES))]
HeadScore = Annotated[str, OneOf(tuple(name for name in SCORES if name != "location"))]
"""Of the heads of a Transformer; "location" is a bias, of which they have their own (`Positions`)."""
Positions = Literal["none", "sinusoidal", "learned", "shaw", "transformer_xl", "t5", "alibi", "rotary"]
"""How a Transformer learns where its tokens stand (attention_jax/models/position_encodings.py)."""
Activation = Literal["relu", "gelu", "gelu_tanh", "swish"]
"""Of a feed-forward layer; gelu is the exact one, with the error function, and gelu_tanh its approximation."""


def rate(default: float, traced: bool = False):
    """The option of a probability of dropping something while training."""
    return option(default, below=1, traced=traced, training_only=True)


@dataclass(frozen=True)
class Seq2seq(ModelOptions):
    """Encoder-decoder of "Deep Learning from Scratch 2", chapter 7, without attention
    (attention_jax/models/book.py)."""

    module: ClassVar[str] = "attention_jax.models.book:Seq2seq"
    task: ClassVar[str] = "attention_jax.tasks.seq2seq:build"
    cell: Literal["lstm", "gru"] = "lstm"
    hidden_size: int = option(256, at_least=1, smoke=8)
    embed_size: int = option(16, at_least=1, smoke=8)
    bidirectional: bool = False
    """Both directions of the encoder, summed, so that every size downstream stays the same."""


@dataclass(frozen=True)
class PeekySeq2seq(Seq2seq):
    """Chapter 7.4: every decoder step sees the encoder's last state."""

    module: ClassVar[str] = "attention_jax.models.book:PeekySeq2seq"


@dataclass(frozen=True)
class AttentionSeq2seq(Seq2seq):
    """Chapter 8: every decoder state looks at all encoder states, there with the dot product."""

    module: ClassVar[str] = "attention_jax.models.book:AttentionSeq2seq"
    score: Score = "dot"
    """dot, scaled_dot, general, concat, additive, cosine, gaussian, location, mean, or package.file:Class of yours."""


@dataclass(frozen=True)
class LuongSeq2seq(AttentionSeq2seq):
    """Chapter 8 with the attentional vector of Luong et al. 2015."""

    module: ClassVar[str] = "attention_jax.models.book:LuongSeq2seq"


@dataclass(frozen=True)
class Translator(ModelOptions):
    """What all recurrent translation models have (attention_jax/models/translator.py)."""

    task: ClassVar[str] = "attention_jax.tasks.seq2seq:build"
    residual = False  # no option, except of GNMT
    hidden_size: int = option(512, at_least=1, smoke=8)
    embed_size: int = option(256, at_least=1, smoke=8)
    cell: Literal["lstm", "gru"] = "gru"
    layers: int = option(1, at_least=1)
    """Of the encoder and of the decoder."""
    bidirectional: Literal["none", "first", "all"] = "all"
    """Which layers of the encoder read in both directions."""
    layer_norm: bool = False
    """Normalise the encoder's annotations."""
    start_from: Literal["pass", "hidden", "dense", "mean"] = "dense"
    """The decoder's first state: the encoder's last one, its hidden part alone (an LSTM's cell starts at zero), a dense
    layer of it, or a dense layer of the annotations' mean."""
    readout_size: int = option(512, at_least=1, smoke=8)
    """Width of what the output layer sees, where a readout has weights."""
    tied: bool = False
    """Share the target's embeddings with the output layer."""
    embed_scale: float = 0.0
    """Standard deviation of the embeddings at initialisation; 0 is 1/sqrt(embed_size), PyTorch's default is 1."""
    embed_dropout: float = rate(0.0)
    layer_dropout: float = rate(0.0)
    """Between layers."""
    memory_dropout: float = rate(0.0)
    """Of the encoder's annotations."""
    output_dropout: float = rate(0.0)
    """Before the output layer."""


@dataclass(frozen=True)
class DeepOutput(Translator):
    """A readout of state, context and previous token (attention_jax/models/readout.py)."""

    readout: Literal["state", "linear", "tanh", "maxout"] = "maxout"
    readout_embedding: bool = True
    """The readout also sees the embedded previous token."""


@dataclass(frozen=True)
class Sutskever(DeepOutput):
    """No attention: Sutskever et al. 2014, Cho et al. 2014 (attention_jax/models/sutskever.py)."""

    module: ClassVar[str] = "attention_jax.models.sutskever:Sutskever"
    handover: Literal["start", "every_step"] = "start"
    """What the encoder's last state does: it starts the decoder, or every step (and the readout) sees it as well."""


@dataclass(frozen=True)
class Bahdanau(DeepOutput):
    """Attention before the recurrence: Bahdanau et al. 2015 (attention_jax/models/bahdanau.py)."""

    module: ClassVar[str] = "attention_jax.models.bahdanau:Bahdanau"
    score: Score = "additive"
    """dot, scaled_dot, general, concat, additive, cosine, gaussian, location, mean, or package.file:Class of yours."""


@dataclass(frozen=True)
class ConditionalGru(DeepOutput):
    """Attention between two transitions: Firat & Cho 2016 (attention_jax/models/conditional_gru.py)."""

    module: ClassVar[str] = "attention_jax.models.conditional_gru:ConditionalGru"
    readout: Literal["state", "linear", "tanh", "maxout"] = "tanh"
    score: Score = "additive"
    """dot, scaled_dot, general, concat, additive, cosine, gaussian, location, mean, or package.file:Class of yours."""


@dataclass(frozen=True)
class Luong(Translator):
    """Attention after the recurrence, global or local: Luong et al. 2015 (attention_jax/models/luong.py)."""

    module: ClassVar[str] = "attention_jax.models.luong:Luong"
    score: Score = "general"
    """dot, scaled_dot, general, concat, additive, cosine, gaussian, location, mean, or package.file:Class of yours."""
    input_feeding: bool = True
    """The attentional vector of a step is part of the next step's input."""
    window: Literal["all", "monotonic", "predictive"] = "all"
    """Global attention, or the paper's local-m and local-p."""
    window_size: int = option(10, at_least=1)
    """Half-width D of the local windows, in tokens."""


@dataclass(frozen=True)
class Gnmt(DeepOutput):
    """A deep stack whose first layer asks: Wu et al. 2016 (attention_jax/models/gnmt.py)."""

    module: ClassVar[str] = "attention_jax.models.gnmt:Gnmt"
    score: Score = "additive"
    """dot, scaled_dot, general, concat, additive, cosine, gaussian, location, mean, or package.file:Class of yours."""
    residual: bool = True
    """Add a layer's input to its output from the second layer on, in the encoder and in the decoder."""


@dataclass(frozen=True)
class Convolutional(ModelOptions):
    """Convolutional sequence to sequence, Gehring et al. 2017 (attention_jax/models/convolutional.py)."""

    module: ClassVar[str] = "attention_jax.models.convolutional:ConvSeq2seq"
    task: ClassVar[str] = "attention_jax.tasks.seq2seq:build"

    hidden_size: int = option(512, at_least=1, smoke=8)
    embed_size: int = option(256, at_least=1, smoke=8)
    layers: int = option(10, at_least=1)
    """Of the encoder and of the decoder."""
    kernel_size: int = option(3, at_least=1)
    positions: int = option(128, at_least=1)
    """Longest source and target."""
    dropout: float = rate(0.25, traced=True)


@dataclass(frozen=True)
class Vit(ModelOptions):
    """Vision Transformer (attention_jax/models/vit.py)."""

    module: ClassVar[str] = "attention_jax.models.vit:Vit"
    task: ClassVar[str] = "attention_jax.tasks.vision:build"

    patch_size: int = option(2, at_least=1)
    hidden_size: int = option(64, at_least=1, smoke=8)
    mlp_size: int = option(128, at_least=1, smoke=16)
    layers: int = option(4, at_least=1)
    heads: int = option(4, at_least=1, smoke=2)
    pool: Literal["token", "mean", "attention"] = "token"
    """What the classifier sees: a class token, the mean of all tokens, or attention with one learned query."""
    position: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    bias: bool = True
    """Biases in the four attention projections."""
    activation: Activation = "gelu"
    norm_epsilon: float = 1e-5
    """What a normalisation adds to the variance."""
    dropout: float = rate(0.0, traced=True)
    attention_dropout: float = rate(0.0, traced=True)
    stochastic_depth: float = rate(0.0)
    """Probability of skipping the last block for an example; earlier blocks proportionally less."""
    dtype: Literal["float32", "bfloat16"] = option("float32", training_only=True)
    """What is computed in; parameters are float32."""
    stem: Literal["patches", "shifted", "convolutions"] = "patches"
    """What makes tokens of the image: a linear map of each patch; the same with its shifts by half a patch along the
    diagonals (Lee et al. 2021); or strided convolutions (Xiao et al. 2021). The last two help where data are few."""
    rep_width: int = 0
    """Width of a linear map with tanh before the classifier (`rep_size` of big_vision); 0 has none."""
    zero_head: bool = False
    """The classifier's weights start as zeros."""
    registers: int = 0
    """Further learned tokens behind the class token, which nobody reads at the end (Darcet et al. 2024); DeiT's
    distillation token is one.
    """


VIT_SIZES = {  # Dosovitskiy et al. 2021, table 1; S: Touvron et al. 2021, table 1
    "S": {"hidden_size": 384, "layers": 12, "heads": 6, "mlp_size": 1536},
    "B": {"hidden_size": 768, "layers": 12, "heads": 12, "mlp_size": 3072},
    "L": {"hidden_size": 1024, "layers": 24, "heads": 16, "mlp_size": 4096},
    "H": {"hidden_size": 1280, "layers": 32, "heads": 16, "mlp_size": 5120},
}


@dataclass(frozen=True)
class Cct(ModelOptions):
    """Compact Convolutional Transformer (attention_jax/models/cct.py); the defaults are CCT-2/3x2."""

    module: ClassVar[str] = "attention_jax.models.cct:Cct"
    task: ClassVar[str] = "attention_jax.tasks.vision:build"

    convolutions: int = option(2, at_least=1)
    kernel_size: int = option(3, at_least=1)
    hidden_size: int = option(128, at_least=1, smoke=8)
    mlp_size: int = option(128, at_least=1, smoke=16)
    layers: int = option(2, at_least=1)
    heads: int = option(2, at_least=1, smoke=2)
    position: Literal["learned", "none"] = "learned"
    dropout: float = rate(0.0, traced=True)
    attention_dropout: float = rate(0.1, traced=True)
    stochastic_depth: float = rate(0.1)
    dtype: Literal["float32", "bfloat16"] = option("float32", training_only=True)


@dataclass(frozen=True)
class ResNet(ModelOptions):
    """Residual network with group normalisation (attention_jax/models/resnet.py); the defaults are ResNet-18's
    shape."""

    module: ClassVar[str] = "attention_jax.models.resnet:ResNet"
    task: ClassVar[str] = "attention_jax.tasks.vision:build"

    widths: tuple[int, ...] = option((64, 128, 256, 512), at_least=1)
    """Channels of each stage; every stage but the first halves the image."""
    blocks: int = option(2, at_least=1)
    """Residual blocks a stage."""
    stem: Literal["small", "large"] = "small"
    """A 3x3 convolution (small images), or 7x7 and pooling, both of stride 2."""
    groups: int = option(16, at_least=1)
    dropout: float = rate(0.0, traced=True)
    dtype: Literal["float32", "bfloat16"] = option("float32", training_only=True)


@dataclass(frozen=True)
class Transformer(ModelOptions):
    """Encoder-decoder Transformers (attention_jax/models/transformer.py); the defaults are the paper's base model."""

    module: ClassVar[str] = "attention_jax.models.transformer:Transformer"
    task: ClassVar[str] = "attention_jax.tasks.seq2seq:build"
    packs: ClassVar[bool] = True

    encoder_layers: int = option(6, at_least=1, smoke=1)
    decoder_layers: int = option(6, at_least=1, smoke=1)
    width: int = option(512, at_least=1, smoke=16)
    """Of the residual stream, d_model."""
    heads: int = option(8, at_least=1, smoke=2)
    ffn: int = option(2048, at_least=1, smoke=16)
    """Hidden units of the feed-forward layers, d_ff."""
    key_width: int = 0
    """Per head, d_k; 0 means width / heads."""
    value_width: int = 0
    """Per head, d_v; 0 means width / heads."""
    norm: Literal["post", "pre"] = "post"
    activation: Activation = "relu"
    positions: Positions = "sinusoidal"
    score: HeadScore = "scaled_dot"
    """dot, scaled_dot, general, concat, additive, cosine, gaussian, mean, or package.file:Class of yours."""
    use_bias: bool = True
    """Bias terms of the attention projections."""
    dropout: float = rate(0.1, traced=True)
    """Of embeddings and of every sub-layer's output."""
    attention_dropout: float = rate(0.0, traced=True)
    """Of attention weights."""
    ffn_dropout: float = rate(0.0, traced=True)
    """Of the feed-forward's hidden units."""
    tied: Literal["none", "output", "all"] = "none"
    """Share the target's embeddings with the output layer, or the source's too."""
    scale_embeddings: bool = True
    """Multiply embeddings by sqrt(width)."""
    embedding_init: Literal["normal", "xavier"] = "normal"
    """Of token vectors and learned positions; normal: deviation 1 as they are added, so 1 / sqrt(width) of tokens that
    are scaled."""
    output_bias: bool = True
    shared_layers: bool = False
    """Each stack is one layer, `encoder_layers` and `decoder_layers` times, as in the Universal Transformer (Dehghani
    et al. 2019, section 2.1); without its halting, and positions are added before the first layer only."""
    max_length: int = option(512, at_least=1, training_only=True)
    """Rows of a learned table of positions."""
    remat: bool = option(False, training_only=True)
    """Compute each layer's activations again in the backward pass instead of keeping them."""
    dtype: Literal["float32", "bfloat16"] = option("float32", training_only=True)
    """What is computed in; parameters are float32."""

    @property
    def needs_joint_vocabulary(self) -> bool:
        return self.tied == "all"

    @property
    def longest_input(self) -> int | None:
        return self.max_length if self.positions == "learned" else None


@dataclass(frozen=True)
class LanguageModel(ModelOptions):
    """Decoder-only Transformers (attention_jax/models/language_model.py)."""

    module: ClassVar[str] = "attention_jax.models.language_model:LanguageModel"
    task: ClassVar[str] = "attention_jax.tasks.language:build"

    layers: int = option(4, at_least=1)
    width: int = option(128, at_least=1, smoke=16)
    heads: int = option(4, at_least=1, smoke=2)
    ffn: int = option(512, at_least=1, smoke=16)
    norm: Literal["post", "pre"] = "pre"
    activation: Activation = "gelu"
    positions: Positions = "rotary"
    score: HeadScore = "scaled_dot"
    """dot, scaled_dot, general, concat, additive, cosine, gaussian, mean, or package.file:Class of yours."""
    dropout: float = rate(0.1, traced=True)
    attention_dropout: float = rate(0.1, traced=True)
    ffn_dropout: float = rate(0.0, traced=True)
    tied: bool = True
    max_length: int = option(512, at_least=1, training_only=True)
    remat: bool = option(False, training_only=True)
    dtype: Literal["float32", "bfloat16"] = option("float32", training_only=True)

    @property
    def longest_input(self) -> int | None:
        return self.max_length if self.positions == "learned" else None


@dataclass(frozen=True)
class TextClassifier(ModelOptions):
    """A Transformer encoder whose states one learned query attends to (attention_jax/models/text_classifier.py)."""

    module: ClassVar[str] = "attention_jax.models.text_classifier:TextClassifier"
    task: ClassVar[str] = "attention_jax.tasks.text_classification:build"

    layers: int = 2
    """0 weighs the words by themselves: no word knows its neighbours."""
    width: int = option(128, at_least=1, smoke=16)
    heads: int = option(4, at_least=1, smoke=2)
    ffn: int = option(256, at_least=1, smoke=16)
    positions: Literal["none", "sinusoidal", "rotary"] = "sinusoidal"
    dropout: float = rate(0.1, traced=True)
    """Of embeddings, of every sub-layer's output and of the pooled state."""
    attention_dropout: float = rate(0.1, traced=True)
    dtype: Literal["float32", "bfloat16"] = option("float32", training_only=True)
    """What is computed in; parameters are float32."""


@dataclass(frozen=True)
class PointerNetwork(ModelOptions):
    """Pointer Networks, Vinyals et al. 2015 (attention_jax/models/pointer.py)."""

    module: ClassVar[str] = "attention_jax.models.pointer:PointerNetwork"
    task: ClassVar[str] = "attention_jax.tasks.pointing:build"

    hidden_size: int = option(128, at_least=1, smoke=8)
    """Of the encoder, of the decoder and of the score."""


@dataclass(frozen=True)
class GraphAttention(ModelOptions):
    """Graph attention networks of two layers, Velickovic et al. 2018 (attention_jax/models/graph_attention.py)."""

    module: ClassVar[str] = "attention_jax.models.graph_attention:GraphAttention"
    task: ClassVar[str] = "attention_jax.tasks.nodes:build"

    heads: int = option(8, at_least=1, smoke=2)
    """Of the hidden layer; the output layer has one."""
    hidden_size: int = option(8, at_least=1, smoke=8)
    """Units of each head of the hidden layer."""
    score: HeadScore = "attention_jax.ops.scores:LeakySum"
    """dot, scaled_dot, general, concat, additive, cosine, gaussian, mean, or package.file:Class (here the paper's)."""
    dropout: float = rate(0.6, traced=True)
    """Of the inputs of both layers and of the projected values."""
    attention_dropout: float = rate(0.6, traced=True)
    """Of attention weights."""
    l2: float = 5e-4
    """This times half the sum of all squared parameters is added to the loss."""


@dataclass(frozen=True)
class NTM(ModelOptions):
    """Neural Turing Machines (attention_jax/models/ntm.py); the defaults are the paper's for copying (tables 1 and
    2)."""

    module: ClassVar[str] = "attention_jax.models.ntm:NTM"
    task: ClassVar[str] = "attention_jax.tasks.memory:build"

    controller: Literal["lstm", "feedforward"] = "lstm"
    hidden_size: int = option(100, at_least=1, smoke=8)
    read_heads: int = option(1, at_least=1)
    write_heads: int = option(1, at_least=1)
    locations: int = option(128, at_least=1)
    width: int = option(20, at_least=1, smoke=16)
    """Numbers in a memory location."""
    shifts: int = option(3, at_least=1)
    """How many shifts a head chooses from: 3 means one back, stay, one forward."""
    memory_init: Literal["constant", "learned", "random"] = "constant"
    """What memory holds before the first step; random is drawn once and not trained."""


@dataclass(frozen=True)
class StackedLSTM(ModelOptions):
    """The baseline of the Neural Turing Machine paper: LSTM layers and no other memory (table 3)."""

    module: ClassVar[str] = "attention_jax.models.ntm:StackedLSTM"
    task: ClassVar[str] = "attention_jax.tasks.memory:build"

    layers: int = option(3, at_least=1)
    hidden_size: int = option(256, at_least=1, smoke=8)


@dataclass(frozen=True)
class RecurrentLanguageModel(ModelOptions):
    """Character models of d2l chapters 9 and 10 (attention_jax/models/recurrent_lm.py)."""

    module: ClassVar[str] = "attention_jax.models.recurrent_lm:RecurrentLanguageModel"
    task: ClassVar[str] = "attention_jax.tasks.language:build"

    cell: Literal["rnn", "gru", "lstm"] = "rnn"
    hidden_size: int = option(32, at_least=1, smoke=8)
    dropout: float = rate(0.0, traced=True)
    """Of the hidden states that the output layer sees."""
    truncation: Literal["full", "truncated", "randomised"] = "full"
    """How far gradients go back within a window (attention_jax/ops/bptt.py)."""
    truncation_length: int = option(8, at_least=1)
    """truncated: the gradient is cut every so many steps; randomised: so many steps on average."""
