"""The options of the models, one dataclass per family; its Flax module holds it as `options`.

Names are the same in all families: `hidden_size` is the width of the residual stream or the recurrent state, `mlp_dim`
of the feed-forward layers, `embed_size` of token embeddings, `key_dim` and `value_dim` of an attention head; `num_...`
counts layers, heads and so on; `position_embedding` is how positions are encoded.
"""

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
    "qk_norm": "attention_jax.ops.scores:QKNorm",
    "soft_cap": "attention_jax.ops.scores:SoftCap",
    "location": "attention_jax.ops.biases:Location",
    "mean": "attention_jax.ops.scores:Constant",
}
"""Scores by name; "mean" gives every key the same weight. soft_cap(30) is `SoftCap(30)`."""
NORMALIZERS = {
    "softmax": "attention_jax.ops.normalizers:Softmax",
    "learned_sink": "attention_jax.models.named_scores:LearnedSink",
    "ssmax": "attention_jax.models.named_scores:LearnedScale",
    "learned_sigmoid": "attention_jax.models.named_scores:LearnedSigmoid",
    "learned_entmax": "attention_jax.models.named_scores:LearnedEntmax",
    "sigmoid": "attention_jax.ops.normalizers:Sigmoid",
    "relu": "attention_jax.ops.normalizers:ReluPower",
    "softpick": "attention_jax.ops.normalizers:Softpick",
    "sparsemax": "attention_jax.ops.normalizers:Sparsemax",
    "entmax": "attention_jax.ops.normalizers:Entmax",
    "top_k": "attention_jax.ops.normalizers:TopK",
    "stick_breaking": "attention_jax.ops.normalizers:StickBreaking",
}
"""Normalizers by name: softmax(0) has a sink of score 0; ssmax and those called learned_ have a number that
each head learns."""
POOLS = {
    "mean": "attention_jax.ops.pooling:Mean",
    "moments": "attention_jax.ops.pooling:Moments",
    "local_linear": "attention_jax.ops.pooling:LocalLinear",
    "log_mixture": "attention_jax.ops.pooling:LogMixture",
}
"""How the weights and values of an attention head become its output, by name."""
MASKS = {"window": "attention_jax.ops.masks:window", "causal": "attention_jax.ops.masks:causal"}
"""Masks by name: window(128) lets a position attend to those at most 128 away."""
ATTENTIONS = {"multi_head": "attention_jax.models.multihead:MultiHeadAttention"}
"""Layers of self-attention by name: Flax modules, subclasses of this one, or made as Module(block)."""
NORMS = {"layer": "attention_jax.models.norms:LayerNorm", "rms": "attention_jax.models.norms:RMSNorm"}
"""Normalizations by name: Flax modules, made as Module(epsilon)."""
MLPS = {
    "dense": "attention_jax.models.blocks:FeedForward",
    "swiglu": "attention_jax.models.blocks:SwiGLU",
    "geglu": "attention_jax.models.blocks:GEGLU",
}
"""Feed-forward layers by name: Flax modules, made as Module(block)."""
ROPE_SCALINGS = {
    "linear": "attention_jax.ops.positions:LinearScaling",
    "llama3": "attention_jax.ops.positions:Llama3Scaling",
    "yarn": "attention_jax.ops.positions:YarnScaling",
}
"""Scalings of the frequencies of rotary positions by name: linear(8), llama3(8, 1, 4, 8192), yarn(4, 32768)."""

Score = Annotated[str, OneOf(tuple(SCORES), arguments=True)]
HeadScore = Annotated[str, OneOf(tuple(name for name in SCORES if name != "location"), arguments=True)]
"""Score of an attention head; "location" is a bias over positions, which Transformers choose by `PositionEmbedding`."""
NormalizerName = Annotated[str, OneOf(tuple(NORMALIZERS), arguments=True)]
POSITIONS = ("none", "sinusoidal", "learned", "shaw", "transformer_xl", "t5", "alibi", "rotary")
PositionEmbedding = Annotated[str, OneOf(POSITIONS)]
"""How positions are encoded in a Transformer (attention_jax/models/position_encodings.py)."""
BIASES = ("alibi", "shaw", "t5", "transformer_xl", "forget", "cope")
"""Biases of the scores that a layer may have beside its position encoding; the first four are also position encodings,
the last two functions of the layer's activations."""
NormPlacement = Literal["post", "pre", "sandwich"]
"""Where the norms of a Transformer layer are."""
Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "swish"]
"""Activation of a feed-forward layer; gelu is exact, with the error function, and gelu_tanh its approximation;
quick_gelu is x sigmoid(1.702 x)."""


def rate(default: float, traced: bool = False, **info):
    """The option of a probability of dropping something while training."""
    return option(default, below=1, traced=traced, training_only=True, **info)


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(ModelOptions):
    """Options of a model whose attention has a score and a normalizer by name."""

    score: Score = "dot"
    """dot, scaled_dot, general, concat, additive, cosine, gaussian, location, mean, or package.file:Class of yours."""
    normalizer: NormalizerName = "softmax"
    """Normalizer of the scores: softmax, softmax(0) with a sink, learned_sink, ssmax, sigmoid(-4), learned_sigmoid,
    relu, softpick, sparsemax, entmax(1.5), learned_entmax, top_k(8), stick_breaking, or package.file:Class of yours."""


@dataclass(frozen=True)
class Seq2seqConfig(ModelOptions):
    """Encoder-decoder of "Deep Learning from Scratch 2", chapter 7, without attention
    (attention_jax/models/book.py)."""

    module: ClassVar[str] = "attention_jax.models.book:Seq2seq"
    task: ClassVar[str] = "attention_jax.tasks.seq2seq:Seq2seqTask"
    cell: Literal["lstm", "gru"] = "lstm"
    """Recurrent cell of the encoder and the decoder."""
    hidden_size: int = option(256, at_least=1, smoke=8)
    """Units of the recurrent state."""
    embed_size: int = option(16, at_least=1, smoke=8)
    """Dimensions of a token embedding."""
    bidirectional: bool = False
    """Sum the states of a forward and a backward encoder, so that every later size stays the same."""


@dataclass(frozen=True)
class PeekySeq2seqConfig(Seq2seqConfig):
    """Chapter 7.4: every decoder step takes the encoder's last state as an input."""

    module: ClassVar[str] = "attention_jax.models.book:PeekySeq2seq"


@dataclass(frozen=True)
class AttentionSeq2seqConfig(AttentionOptions, Seq2seqConfig):
    """Chapter 8: every decoder state attends to all encoder states, there with the dot product."""

    module: ClassVar[str] = "attention_jax.models.book:AttentionSeq2seq"


@dataclass(frozen=True)
class LuongSeq2seqConfig(AttentionSeq2seqConfig):
    """Chapter 8 with the attentional vector of Luong et al. 2015."""

    module: ClassVar[str] = "attention_jax.models.book:LuongSeq2seq"


@dataclass(frozen=True)
class TranslatorConfig(ModelOptions):
    """Options of all recurrent translation models (attention_jax/models/translator.py)."""

    task: ClassVar[str] = "attention_jax.tasks.seq2seq:Seq2seqTask"
    residual = False  # an option of GNMT alone
    hidden_size: int = option(512, at_least=1, smoke=8)
    """Units of a recurrent layer, in each direction."""
    embed_size: int = option(256, at_least=1, smoke=8)
    """Dimensions of a token embedding."""
    cell: Literal["lstm", "gru"] = "gru"
    """Recurrent cell of the encoder and the decoder."""
    num_layers: int = option(1, at_least=1)
    """Layers of the encoder, and of the decoder."""
    bidirectional: Literal["none", "first", "all"] = "all"
    """The bidirectional encoder layers."""
    layer_norm: bool = False
    """Apply layer normalization to the encoder's annotations."""
    decoder_init: Literal["pass", "hidden", "dense", "mean"] = "dense"
    """Initial decoder state: the encoder's last state; its hidden part alone (an LSTM's cell starts at zero); a dense
    layer of it; or a dense layer of the annotations' mean."""
    encoder_state: Literal["last_token", "last_step"] = "last_token"
    """The encoder's last state: that after the last token, or after the last step, which may be padding."""
    forget_bias: float = 0.0
    """Initial bias of an LSTM's forget gates; 0 starts them half closed."""
    recurrent_bias: bool = False
    """Add a second bias, to the recurrent product, as PyTorch does; the recurrent layers then start as those of d2l's
    sections 10.7 and 11.4: biases uniform within 1 / sqrt(hidden_size), kernels with Xavier's values over all gates."""
    readout_size: int = option(512, at_least=1, smoke=8)
    """Dimensions of the input of the output layer, where the readout has weights."""
    tied_embeddings: bool = False
    """Use the target embeddings as the weights of the output layer."""
    embed_scale: float = 0.0
    """Standard deviation of the embeddings at initialization; 0 is 1/sqrt(embed_size), PyTorch's default is 1."""
    attention_dropout: float = rate(0.0)
    """Dropout rate of the attention weights of a model that attends."""
    embed_dropout: float = rate(0.0)
    """Dropout rate of the token embeddings."""
    layer_dropout: float = rate(0.0)
    """Dropout rate between recurrent layers."""
    memory_dropout: float = rate(0.0)
    """Dropout rate of the encoder's annotations."""
    output_dropout: float = rate(0.0)
    """Dropout rate of the input of the output layer."""


@dataclass(frozen=True)
class DeepOutputConfig(TranslatorConfig):
    """A readout of state, context and previous token (attention_jax/models/readout.py)."""

    readout: Literal["state", "linear", "tanh", "maxout"] = "maxout"
    """Layer between the decoder state and the output layer; state has none."""
    readout_embedding: bool = True
    """The readout also takes the embedding of the previous token."""


@dataclass(frozen=True)
class BahdanauConfig(AttentionOptions, DeepOutputConfig):
    """Attention before the recurrence: Bahdanau et al. 2015 (attention_jax/models/bahdanau.py)."""

    module: ClassVar[str] = "attention_jax.models.bahdanau:Bahdanau"
    score: Score = "additive"


@dataclass(frozen=True)
class LuongConfig(AttentionOptions, TranslatorConfig):
    """Attention after the recurrence, global or local: Luong et al. 2015 (attention_jax/models/luong.py)."""

    module: ClassVar[str] = "attention_jax.models.luong:Luong"
    score: Score = "general"
    input_feeding: bool = True
    """Concatenate the attentional vector h~ of a step to the next step's input (Luong et al. 2015, section 3.3)."""
    window: Literal["all", "monotonic", "predictive"] = "all"
    """Global attention (all), or the paper's local-m (monotonic) and local-p (predictive)."""
    window_size: int = option(10, at_least=1)
    """Half-width D of the local windows, in tokens: positions p - D to p + D."""


@dataclass(frozen=True)
class GNMTConfig(AttentionOptions, DeepOutputConfig):
    """A deep stack whose first decoder layer attends: Wu et al. 2016 (attention_jax/models/gnmt.py)."""

    module: ClassVar[str] = "attention_jax.models.gnmt:GNMT"
    score: Score = "additive"
    residual: bool = True
    """Residual connections from the second layer on, in the encoder and in the decoder."""


@dataclass(frozen=True, kw_only=True)
class TransformerLayers(AttentionOptions):
    """Options of the layers of every Transformer here (attention_jax/models/blocks.py)."""

    score: HeadScore = "scaled_dot"
    """dot, scaled_dot, general, concat, additive, cosine, gaussian, qk_norm, soft_cap(50), mean, or package.file:Class
    of yours."""
    attention: Annotated[str, OneOf(tuple(ATTENTIONS), arguments=True)] = "multi_head"
    """The layer of self-attention: multi_head, or package.file:Module of yours, a subclass of MultiHeadAttention or a
    Flax module, made as Module(block), with its own fields in parentheses; attention to an encoder stays multi-head."""
    head_pool: Annotated[str, OneOf(tuple(POOLS), arguments=True)] = "mean"
    """Pooling of a head's values: mean, moments (mean and variance), local_linear (for heads of up to about 16
    dimensions), log_mixture, or package.file:Class of yours."""
    mask: Annotated[str, OneOf(("none", *MASKS), arguments=True)] = "none"
    """Mask of self-attention besides causal and padding masks: none for all positions, window(128) for
    those at most 128 positions away, causal for those up to its own, or package.file:Class of yours."""
    bias: Annotated[str, OneOf(("none", *BIASES))] = "none"
    """Bias of the scores of self-attention, added to what `position_embedding` does, which stays: none, alibi, shaw, t5
    (with buckets for both directions), transformer_xl, forget (the forget gates of the Forgetting Transformer), cope
    (contextual positions, in causal layers), or package.file:Class of yours. Each layer has its own."""
    norm_layer: Annotated[str, OneOf(tuple(NORMS))] = "layer"
    """LayerNorm (layer), RMSNorm (rms), or package.file:Module of yours, made as Module(epsilon)."""
    mlp_layer: Annotated[str, OneOf(tuple(MLPS))] = "dense"
    """The feed-forward layer: two linear maps around `activation` (dense); gated by a swish (swiglu) or a GELU (geglu),
    without biases; or package.file:Module of yours, made as Module(block)."""
    num_kv_heads: int = option(0, smoke=1)
    """Heads of keys and values, each read by num_heads / num_kv_heads heads of queries (grouped-query attention, GQA);
    0 is as many as of queries, 1 is multi-query attention (MQA)."""
    output_gate: bool = False
    """Multiply the pooled values, before W_o, by sigmoid(x W_g + b_g) of the layer's input x (Qiu et al. 2025)."""
    differential: bool = False
    """Differential attention: two maps for each head, of half its queries and keys each, of which the second is
    subtracted (Ye et al. 2024)."""
    differential_v2: bool = False
    """The second version of it: two maps for each head, with queries of full width each and the same keys and values,
    of which the second is subtracted by a factor sigmoid(x W) of each position and head (Ye et al. 2026)."""
    exclusive: bool = False
    """Exclusive self-attention: remove from the output of a head its component along the value of the query's own
    position (Zhai 2026)."""
    rope_theta: float = option(10_000.0, above=1)
    """Base of rotary positions (RoPE): pair i of D/2 rotates by position / theta^(2i/D) radians."""
    rope_scaling: Annotated[str, OneOf(("none", *ROPE_SCALINGS), arguments=True)] = "none"
    """Scaling of these frequencies, for longer texts: linear(8) divides them by 8; llama3(8, 1, 4, 8192) those that
    turn less than once in 8192 positions, and none that turns more than 4 times (Llama 3.1); yarn(4, 32768) by 4 those
    that turn less than once in 32768 positions, none that turns more than 32 times, and multiplies queries and keys by
    0.1 ln(4) + 1 (Peng et al. 2023); or package.file:function of yours, from frequencies to frequencies."""
    rope_fraction: float = option(1.0, above=0, at_most=1)
    """Share of the channels of a head, from the first on, that rotary positions rotate: `partial_rotary_factor` of
    other libraries; 1 rotates all."""
    normalize_qk: bool = False
    """RMSNorm of each head's queries and keys, with a learned scale for all heads, before rotary positions (Qwen 3,
    Gemma 3)."""


@dataclass(frozen=True)
class ViTConfig(TransformerLayers):
    """Vision Transformer (attention_jax/models/vit.py)."""

    module: ClassVar[str] = "attention_jax.models.vit:ViT"
    task: ClassVar[str] = "attention_jax.tasks.vision:VisionTask"

    patch_size: int = option(2, at_least=1)
    """Side of a square patch, in pixels; it divides the side of the image."""
    hidden_size: int = option(64, at_least=1, smoke=8)
    """Width of the residual stream."""
    mlp_dim: int = option(128, at_least=1, smoke=16)
    """Hidden units of the feed-forward layers."""
    num_layers: int = option(4, at_least=1)
    """Transformer layers."""
    num_heads: int = option(4, at_least=1, smoke=2)
    """Attention heads of a layer; they divide hidden_size."""
    pool: Literal["token", "mean", "attention"] = "token"
    """Input of the classifier: a class token, the mean of all tokens, or attention pooling with one learned query."""
    position_embedding: Annotated[str, OneOf(("learned", "sinusoidal", "rotary", "none"))] = "learned"
    """Position encoding of the patches, or package.file:Class of yours: a bias of the scores, or a Flax module."""
    use_bias: bool = True
    """Bias terms in the four attention projections."""
    activation: Activation = "gelu"
    """Activation of the feed-forward layers."""
    norm_epsilon: float = 1e-5
    """Constant that layer normalization adds to the variance."""
    dropout: float = rate(0.0, traced=True)
    """Dropout rate of the embeddings and of the feed-forward layers."""
    attention_dropout: float = rate(0.0, traced=True)
    """Dropout rate of the attention weights, after normalization."""
    stochastic_depth: float = rate(0.0)
    """Probability p of skipping the last of L layers for an example; layer i, from 0, has p i / (L - 1)."""
    dtype: Literal["float32", "bfloat16"] = option("float32", training_only=True)
    """Type of the computation; parameters are float32."""
    stem: Literal["patches", "shifted", "convolutions"] = "patches"
    """How an image becomes tokens: a linear map of each patch; the same with the image shifted by half a patch along
    the diagonals (Lee et al. 2021); or strided convolutions (Xiao et al. 2021). The last two help on small datasets."""
    pre_logits_dim: int = 0
    """Units of a tanh layer before the classifier (`rep_size` of big_vision); 0 has none."""
    zero_head: bool = False
    """Initialize the classifier's weights with zeros."""
    num_registers: int = 0
    """Learned tokens after the class token, which are discarded at the output (Darcet et al. 2024); DeiT's
    distillation token is one."""


VIT_SIZES = {  # Dosovitskiy et al. 2021, table 1; S: Touvron et al. 2021, table 1
    "S": {"hidden_size": 384, "num_layers": 12, "num_heads": 6, "mlp_dim": 1536},
    "B": {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "mlp_dim": 3072},
    "L": {"hidden_size": 1024, "num_layers": 24, "num_heads": 16, "mlp_dim": 4096},
    "H": {"hidden_size": 1280, "num_layers": 32, "num_heads": 16, "mlp_dim": 5120},
}


@dataclass(frozen=True)
class TransformerConfig(TransformerLayers):
    """Encoder-decoder Transformers (attention_jax/models/transformer.py); the defaults are the paper's base model,
    except for separate embeddings of source and target, and biases in attention."""

    module: ClassVar[str] = "attention_jax.models.transformer:Transformer"
    task: ClassVar[str] = "attention_jax.tasks.seq2seq:Seq2seqTask"
    supports_packing: ClassVar[bool] = True

    num_encoder_layers: int = option(6, at_least=1, smoke=1)
    """Layers of the encoder."""
    num_decoder_layers: int = option(6, at_least=1, smoke=1)
    """Layers of the decoder."""
    hidden_size: int = option(512, at_least=1, smoke=16)
    """Width of the residual stream, d_model."""
    num_heads: int = option(8, at_least=1, smoke=2)
    """Attention heads of a layer."""
    mlp_dim: int = option(2048, at_least=1, smoke=16)
    """Hidden units of the feed-forward layers, d_ff."""
    key_dim: int = 0
    """Dimensions of a head's queries and keys, d_k; 0 is hidden_size / num_heads."""
    value_dim: int = 0
    """Dimensions of a head's values, d_v; 0 is hidden_size / num_heads."""
    norm: NormPlacement = "post"
    """post: x = norm(x + sublayer(x)) (Vaswani et al. 2017); pre: x = x + sublayer(norm(x)), with a norm at the end;
    sandwich: x = x + norm(sublayer(norm(x))) (Gemma 2), with a norm at the end."""
    activation: Activation = "relu"
    """Activation of the feed-forward layers."""
    position_embedding: PositionEmbedding = "sinusoidal"
    """Position encoding of the tokens (attention_jax/models/position_encodings.py), or package.file:Class of yours: a
    bias of the scores, or a Flax module."""
    use_bias: bool = True
    """Bias terms in the attention projections."""
    mlp_bias: bool = True
    """Bias terms in the dense feed-forward layers; T5 has none."""
    norm_epsilon: float = option(1e-5, at_least=0)
    """Constant that the norms add to the variance or the mean square."""
    dropout: float = rate(0.1, traced=True)
    """Dropout rate of the embeddings and of every sub-layer's output."""
    attention_dropout: float = rate(0.0, traced=True)
    """Dropout rate of the attention weights, after normalization."""
    mlp_dropout: float = rate(0.0, traced=True)
    """Dropout rate of the feed-forward layers' hidden units."""
    tied_embeddings: Literal["none", "output", "inputs", "all"] = "none"
    """Use the target embeddings as the weights of the output layer (output), for the source (inputs), or both (all)."""
    scale_embeddings: bool = True
    """Multiply the embeddings by sqrt(hidden_size)."""
    embedding_init: Literal["normal", "xavier"] = "normal"
    """Initialization of token embeddings and learned positions. normal: standard deviation 1 after scaling, so 1 /
    sqrt(hidden_size) for embeddings that are scaled."""
    embed_scale: float = 0.0
    """Standard deviation of the token embeddings at initialization, before they are scaled, if `embedding_init` is
    normal; 0 is 1 after scaling."""
    dropout_embeddings: bool = True
    """Apply `dropout` to the embeddings, not only to the output of every sub-layer."""
    evaluation_mask: Literal["causal", "none"] = "causal"
    """Mask of the decoder's self-attention where known targets are evaluated; none attends to later targets, too, as
    the validation loss of d2l's section 11.7 does. Training and decoding are always causal."""
    self_attention_init: Literal["xavier", "fan_in"] = "xavier"
    """Initialization of the kernels of self-attention and of Transformer-XL's positions. fan_in: uniform within 1 /
    sqrt(fan_in), as PyTorch's linear maps."""
    mlp_init: Literal["xavier", "relu"] = "xavier"
    """Initialization of the dense feed-forward layers. relu: Glorot's with the gain of a ReLU, sqrt(2), in the first
    kernel, and biases that are uniform within 1 / sqrt(fan_in) instead of 0."""
    output_bias: bool = True
    """Bias term of the output layer."""
    scale_output: bool = False
    """Divide the input of the output layer by sqrt(hidden_size), as T5 does."""
    shared_layers: bool = False
    """One layer per stack, applied `num_encoder_layers` and `num_decoder_layers` times, as in the Universal Transformer
    (Dehghani et al. 2019, section 2.1); without its halting, and positions are added before the first application
    only."""
    scan_layers: bool = False
    """Go through the layers of a stack in a loop, as `LanguageModelConfig.scan_layers`."""
    max_length: int = option(512, at_least=1, training_only=True)
    """Length of the table of learned positions, in tokens."""
    remat: bool = option(False, training_only=True)
    """Gradient checkpointing: recompute the activations of each layer in the backward pass instead of storing them."""
    dtype: Literal["float32", "bfloat16"] = option("float32", training_only=True)
    """Type of the computation; parameters are float32."""

    @property
    def needs_joint_vocabulary(self) -> bool:
        return self.tied_embeddings in ("inputs", "all")

    @property
    def longest_input(self) -> int | None:
        return self.max_length if self.position_embedding == "learned" else None


@dataclass(frozen=True)
class LanguageModelConfig(TransformerLayers):
    """Decoder-only Transformers (attention_jax/models/language_model.py)."""

    module: ClassVar[str] = "attention_jax.models.language_model:LanguageModel"
    task: ClassVar[str] = "attention_jax.tasks.language:LanguageTask"

    num_layers: int = option(4, at_least=1)
    """Transformer layers."""
    hidden_size: int = option(128, at_least=1, smoke=16)
    """Width of the residual stream, d_model."""
    num_heads: int = option(4, at_least=1, smoke=2)
    """Attention heads of a layer; they divide hidden_size."""
    mlp_dim: int = option(512, at_least=1, smoke=16)
    """Hidden units of the feed-forward layers, d_ff."""
    norm: NormPlacement = "pre"
    """post: x = norm(x + sublayer(x)) (Vaswani et al. 2017); pre: x = x + sublayer(norm(x)), with a norm at the end;
    sandwich: x = x + norm(sublayer(norm(x))) (Gemma 2), with a norm at the end."""
    activation: Activation = "gelu"
    """Activation of the feed-forward layers."""
    position_embedding: PositionEmbedding = "rotary"
    """Position encoding of the tokens (attention_jax/models/position_encodings.py), or package.file:Class of yours: a
    bias of the scores, or a Flax module."""
    key_dim: int = option(0, at_least=0)
    """Dimensions of a head's queries and keys, d_k; 0 is hidden_size / num_heads."""
    value_dim: int = option(0, at_least=0)
    """Dimensions of a head's values, d_v; 0 is hidden_size / num_heads."""
    use_bias: bool = True
    """Bias terms in the attention projections; Llama has none."""
    norm_epsilon: float = option(1e-5, at_least=0)
    """Constant that the norms add to the variance or the mean square."""
    dropout: float = rate(0.1, traced=True)
    """Dropout rate of the embeddings and of every sub-layer's output."""
    attention_dropout: float = rate(0.1, traced=True)
    """Dropout rate of the attention weights, after normalization."""
    mlp_dropout: float = rate(0.0, traced=True)
    """Dropout rate of the feed-forward layers' hidden units."""
    tied_embeddings: bool = True
    """Use the token embeddings as the weights of the output layer."""
    scale_embeddings: bool = True
    """Multiply the embeddings by sqrt(hidden_size); GPT-2 does not."""
    output_bias: bool = True
    """Bias term of the output layer; GPT-2 has none."""
    value_residual: bool = False
    """Values of all layers but the first are l_1 v + l_2 v_1, with the values v_1 of the first and two numbers that
    each learns, 1 and 0 at first (Zhou et al. 2025)."""
    value_embeddings: bool = False
    """Add an embedding of the token to the values of each layer, 0 at first, times a gate of each head (nanochat)."""
    attention_residuals: bool = False
    """Sub-layers read, in place of the sum of the embedding and all earlier outputs, attention over these with a
    learned query, 0 at first (Kimi Team 2026); not with `scan_layers` or --model.norm post."""
    logit_cap: float = option(0.0, at_least=0)
    """Soft cap c of the output logits, c tanh(logits / c) (Gemma 2); 0 has none. That of attention is the score
    soft_cap(50)."""
    per_layer: str = ""
    """Options of single layers, counted from 0, in place of the model's: "0-4,6:mask=window(512);5:rope_theta=1000000".
    A layer may have its own attention, score, normalizer, head_pool, mask, bias, rope_theta, rope_scaling, and
    position_embedding (none or rotary). What a layer of a pretrained model or of a run already has stays, unless it is
    given."""
    scan_layers: bool = False
    """Go through runs of equal layers in a loop, so that programs do not grow with depth and compile as fast as one
    layer; their weights are stacked, decoder/layers_0 in place of decoder/layer_0, layer_1, ..."""
    max_length: int = option(512, at_least=1, training_only=True)
    """Length of the table of learned positions, in tokens."""
    remat: bool = option(False, training_only=True)
    """Gradient checkpointing: recompute the activations of each layer in the backward pass instead of storing them."""
    dtype: Literal["float32", "bfloat16"] = option("float32", training_only=True)
    """Type of the computation; parameters are float32."""

    @property
    def longest_input(self) -> int | None:
        return self.max_length if self.position_embedding == "learned" else None


@dataclass(frozen=True)
class MaskedLanguageModelConfig(TransformerLayers):
    """Encoders of texts (attention_jax/models/bert.py): BERT, RoBERTa, DistilBERT, which predict masked words, and the
    text encoders of T5 and CLIP."""

    module: ClassVar[str] = "attention_jax.models.bert:MaskedLanguageModel"
    task: ClassVar[str] = "attention_jax.tasks.text_classification:TextTask"

    num_layers: int = option(2, at_least=1)
    """Transformer layers."""
    hidden_size: int = option(128, at_least=1, smoke=16)
    """Width of the residual stream."""
    num_heads: int = option(4, at_least=1, smoke=2)
    """Attention heads of a layer; they divide hidden_size."""
    mlp_dim: int = option(512, at_least=1, smoke=16)
    """Hidden units of the feed-forward layers."""
    num_token_types: int = option(2, at_least=0)
    """Rows of the table of token types, which tell the first of two texts from the second; 0 has none (DistilBERT)."""
    first_position: int = option(0, at_least=0)
    """Row of the first token in the table of learned positions; RoBERTa's is 2."""
    max_length: int = option(512, at_least=1)
    """Learned positions: the longest text, in tokens."""
    activation: Activation = "gelu"
    """Activation of the feed-forward layers and of the head for words."""
    norm_epsilon: float = 1e-12
    """Constant that the norms add to the variance or the mean square."""
    norm: NormPlacement = "post"
    """post: x = norm(x + sublayer(x)) (BERT); pre: x = x + sublayer(norm(x)), with a norm at the end (T5, CLIP);
    sandwich: x = x + norm(sublayer(norm(x))), with a norm at the end."""
    norm_embedding: bool = True
    """Normalize the embeddings, as BERT does."""
    position_embedding: Literal["learned", "t5", "none"] = "learned"
    """learned: a table, added to the token embeddings; t5: a bias of the scores, which all layers share; none."""
    use_bias: bool = True
    """Bias terms in the attention projections; T5 has none."""
    mlp_bias: bool = True
    """Bias terms in the dense feed-forward layers; T5 has none."""
    key_dim: int = option(0, at_least=0)
    """Dimensions of a head's queries and keys, d_k; 0 is hidden_size / num_heads."""
    value_dim: int = option(0, at_least=0)
    """Dimensions of a head's values, d_v; 0 is hidden_size / num_heads."""
    word_head: bool = True
    """Layers for the logits of masked words; their matrix of weights is that of the token embeddings."""
    pooler: Literal["none", "tanh", "relu"] = "none"
    """Layer between the first token's state and the classifier, by its activation: tanh in BERT and RoBERTa, relu in
    DistilBERT; none classifies what `pool` makes of the states."""
    pool: Literal["mean", "first", "last", "max"] = "mean"
    """Pooling of the states to a sentence embedding: their mean or maximum, or the first or last of them."""
    projection_dim: int = option(0, at_least=0)
    """Width of a linear map of the pooled state, which gives CLIP's embeddings; 0 has none."""
    unit_norm: bool = False
    """Divide sentence embeddings by their Euclidean norm."""
    dropout: float = rate(0.1, traced=True)
    """Dropout rate of the embeddings, of every sub-layer's output and of the classifier's input."""
    attention_dropout: float = rate(0.1, traced=True)
    """Dropout rate of the attention weights, after normalization."""
    per_layer: str = ""
    """Options of single layers, counted from 0, as of a language model: "0-4:mask=window(16);5:normalizer=top_k(8)"."""
    scan_layers: bool = False
    """Go through runs of equal layers in a loop, as a language model; weights are stacked, encoder/layers_0."""
    remat: bool = option(False, training_only=True)
    """Gradient checkpointing: recompute the activations of each layer in the backward pass instead of storing them."""
    dtype: Literal["float32", "bfloat16"] = option("float32", training_only=True)
    """Type of the computation; parameters are float32."""

    @property
    def longest_input(self) -> int | None:
        return self.max_length if self.position_embedding == "learned" else None


@dataclass(frozen=True)
class TextClassifierConfig(TransformerLayers):
    """A Transformer encoder, pooled by attention with one learned query (attention_jax/models/text_classifier.py)."""

    module: ClassVar[str] = "attention_jax.models.text_classifier:TextClassifier"
    task: ClassVar[str] = "attention_jax.tasks.text_classification:TextTask"

    num_layers: int = 2
    """Layers of the encoder; 0 pools the word embeddings themselves."""
    hidden_size: int = option(128, at_least=1, smoke=16)
    """Width of the residual stream."""
    num_heads: int = option(4, at_least=1, smoke=2)
    """Attention heads of a layer; they divide hidden_size."""
    mlp_dim: int = option(256, at_least=1, smoke=16)
    """Hidden units of the feed-forward layers."""
    position_embedding: Annotated[str, OneOf(("none", "sinusoidal", "rotary"))] = "sinusoidal"
    """Position encoding of the tokens, or package.file:Class of yours: a bias of the scores, or a Flax module."""
    dropout: float = rate(0.1, traced=True)
    """Dropout rate of the embeddings, of every sub-layer's output and of the pooled state."""
    attention_dropout: float = rate(0.1, traced=True)
    """Dropout rate of the attention weights, after normalization."""
    dtype: Literal["float32", "bfloat16"] = option("float32", training_only=True)
    """Type of the computation; parameters are float32."""


@dataclass(frozen=True)
class NTMConfig(ModelOptions):
    """Neural Turing Machines (attention_jax/models/ntm.py); the defaults are the paper's for copying (tables 1 and
    2)."""

    module: ClassVar[str] = "attention_jax.models.ntm:NTM"
    task: ClassVar[str] = "attention_jax.tasks.memory:MemoryTask"
    custom_loss: ClassVar[bool] = True

    controller: Literal["lstm", "feedforward"] = "lstm"
    """Network that emits the heads' parameters."""
    hidden_size: int = option(100, at_least=1, smoke=8)
    """Units of the controller."""
    num_read_heads: int = option(1, at_least=1)
    """Read heads."""
    num_write_heads: int = option(1, at_least=1)
    """Write heads."""
    num_locations: int = option(128, at_least=1)
    """Memory locations, N."""
    word_size: int = option(20, at_least=1, smoke=16)
    """Width of a memory location, M."""
    num_shifts: int = option(3, at_least=1)
    """Number of allowed location shifts around 0: 3 are -1, 0 and +1."""
    memory_init: Literal["constant", "learned", "random"] = "constant"
    """Initial memory: constant, learned, or sampled once and not trained (random)."""
    forget_bias: float = 0.0
    """Initial bias of the forget gates of an LSTM controller; 0 starts them half closed."""
    output_clip: float = 0.0
    """Clip what the controller emits for the heads to between this and its negative; 0 does not clip."""
    controller_init: Literal["fan_in", "xavier"] = "fan_in"
    """Initialization of the controller's two matrices: normal with a variance of 1 / inputs each (fan_in), or uniform
    in Glorot's range for both side by side (xavier)."""
    state_init: Literal["first_location", "trained"] = "first_location"
    """State before the first step. first_location: every head at location 0, a trained controller state and trained
    reads. trained: the memory, whatever `memory_init` is, the heads' weights and the reads are trained; the controller
    begins at 0. Weights are a softmax, reads, a learned and a random memory a tanh, of values in Glorot's range for one
    input; those of a random memory have a standard deviation of 0.5."""
    read_first: bool = False
    """Read the memory as it was before the step's write."""


@dataclass(frozen=True)
class StackedLSTMConfig(ModelOptions):
    """LSTM baseline of the Neural Turing Machine paper (table 3)."""

    module: ClassVar[str] = "attention_jax.models.ntm:StackedLSTM"
    task: ClassVar[str] = "attention_jax.tasks.memory:MemoryTask"
    custom_loss: ClassVar[bool] = True

    num_layers: int = option(3, at_least=1)
    """LSTM layers."""
    hidden_size: int = option(256, at_least=1, smoke=8)
    """Units of a layer."""


@dataclass(frozen=True)
class RecurrentLanguageModelConfig(ModelOptions):
    """Character models of d2l chapters 9 and 10 (attention_jax/models/recurrent_lm.py)."""

    module: ClassVar[str] = "attention_jax.models.recurrent_lm:RecurrentLanguageModel"
    task: ClassVar[str] = "attention_jax.tasks.language:LanguageTask"

    cell: Literal["rnn", "gru", "lstm"] = "rnn"
    """Recurrent cell."""
    hidden_size: int = option(32, at_least=1, smoke=8)
    """Units of the recurrent state."""
    recurrent_bias: bool = False
    """Add a second bias, to the recurrent product, as PyTorch does; a GRU's candidate always has one."""
    dropout: float = rate(0.0, traced=True)
    """Dropout rate of the input of the output layer."""
    truncation: Literal["full", "truncated", "randomised"] = "full"
    """Backpropagation through time within a window (attention_jax/ops/recurrent/bptt.py)."""
    truncation_length: int = option(8, at_least=1)
    """Steps after which the gradient is cut (truncated), or their mean (randomized)."""
