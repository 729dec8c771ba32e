"""Position encodings of a Transformer: vectors added to the embeddings, rotation, or biases of the scores.

| kind       | acts on                        | parameters              | source                              |
|------------|--------------------------------|-------------------------|-------------------------------------|
| none       | nothing: order is invisible    | -                       |                                     |
| sinusoidal | embeddings                     | -                       | Vaswani et al. 2017, section 3.5    |
| learned    | embeddings                     | max_length x d          | Gehring et al. 2017                 |
| shaw       | scores of self-attention, keys | (2 REACH + 1) x d_k a layer | Shaw et al. 2018, eq. 4         |
| transformer_xl | scores of self-attention, keys | d_k x heads d_k a head and layer | Dai et al. 2019, 3.3 |
| t5         | scores of self-attention       | BUCKETS x heads a stack | Raffel et al. 2020, section 2.1     |
| alibi      | scores of self-attention       | -                       | Press et al. 2022, section 3        |
| rotary     | queries and keys               | -                       | Su et al. 2021, eq. 34              |

The relative ones (the last five) see only differences of positions. In the decoder of a sequence-to-sequence model
they act on self-attention alone: the positions of two languages have no difference.

An import path names a custom class: a `Bias` of the scores of self-attention, made for each head and shared by
the layers of a stack, or a Flax module, made as Module(width), that maps positions [T] to the vectors [T, D] to add.

The option `bias` has a bias beside any of these, of each layer's own (`MultiHeadAttention.add_bias`), which reads the
queries before a rotation (but in a ViT, where rotary positions exclude shaw and transformer_xl), and two more, which
are functions of its activations:

| bias   | parameters               | source                                                     |
|--------|--------------------------|------------------------------------------------------------|
| forget | (d + 1) a head           | Forgetting Transformer, Lin et al. 2025, section 3         |
| cope   | CONTEXTUAL x d_k a layer | contextual positions (CoPE), Golovneva et al. 2024, sec. 4 |
"""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attention_jax.config.models import BIASES, POSITIONS, ROPE_SCALINGS, PositionEmbedding
from attention_jax.config.options import build_from_name, option_name, resolve_name
from attention_jax.errors import InputError
from attention_jax.models.initializers import within
from attention_jax.models.parts import PartFactory, make_part_per_head, parse_part
from attention_jax.ops.biases import ALiBi, Bias, ShawBias, T5Bias, TransformerXLBias
from attention_jax.ops.positions import sinusoidal

KINDS: tuple[str, ...] = POSITIONS
REACH = 16
"""Shaw: relative positions beyond this are treated alike (the paper's k = 16)."""
BUCKETS = 32
"""T5: buckets of relative positions."""
CONTEXTUAL = 64
"""CoPE: contextual positions, of which those beyond share the last one."""
LAYER_BIASES = ("none", "forget", "cope")
"""Options `bias` that `RelativeBias` does not make: they are functions of the activations of a layer."""


def custom_positions(kind: PositionEmbedding) -> Callable[..., nn.Module] | None:
    """What makes, as make(width), the Flax module that an import path names; None for a bias and the built-in kinds.

    Raises InputError for what is neither a module nor a bias.
    """
    if ":" not in kind:
        return None
    target, arguments = resolve_name(kind, {})
    if isinstance(target, type) and issubclass(target, nn.Module):
        return lambda width, **name: target(width, *(arguments or ()), **name)
    parse_bias(kind)
    return None


def rope_scaling(option: str) -> Callable | None:
    """The function of the frequencies of rotary positions that `option` names; None for "none"."""
    if option == "none":
        return None
    name, parenthesis, arguments = option.partition("(")
    path = ROPE_SCALINGS.get(name, name)
    try:
        scaling = build_from_name(path + parenthesis + arguments, {})
        if isinstance(scaling, type) or np.shape(scaling(np.array([1.0, 0.5]))) != (2,):
            raise InputError("it must map frequencies to frequencies")
        return scaling
    except (InputError, TypeError) as error:
        cause = str(error).replace(path, name).removeprefix(f"{option}: ")
        if not (parenthesis and name in ROPE_SCALINGS):
            cause += "; give none, linear(8), llama3(8, 1, 4, 8192), yarn(4, 32768) or package.file:function"
        raise InputError(f"--model.rope-scaling {option}: {cause}") from error


def check_bias(name: str):
    """Raise InputError for an option `bias` that is not "none", one of `BIASES` or the import path of a bias."""
    if ":" in name:
        parse_bias(name, "bias")
    elif name not in ("none", *BIASES):
        raise InputError(f"--model.bias must be none, {', '.join(BIASES)} or package.file:Class, got {name!r}")


def parse_bias(kind: str, option: str = "position_embedding") -> PartFactory:
    """The bias with the import path `kind` (`parts.parse_part`), of `option`."""
    target, _ = resolve_name(kind, {})
    if getattr(target, "__module__", "") == Bias.__module__ and hasattr(target, "init"):
        raise InputError(
            f"{option_name(option, 'model')} {kind} must be a class of your own, or one of "
            + ", ".join(POSITIONS if option == "position_embedding" else BIASES)
        )
    return parse_part(option, kind, {}, Bias)


def position_vectors(
    kind: PositionEmbedding, positions: Int[Array, "T"], width: int, table: nn.Module | None, dtype=jnp.float32
) -> Float[Array, "T D"] | None:
    """The vectors to add to the embeddings at `positions`, from the module `table` if there is one, or fixed ones in
    `dtype`; None where the kind adds none.

    >>> position_vectors("sinusoidal", jnp.arange(3), 8, None).shape
    (3, 8)
    """
    if kind == "sinusoidal":
        return sinusoidal(positions, width, dtype)
    return None if table is None else table(positions)


class RelativeBias(nn.Module):
    """The bias of one stack's or one layer's self-attention, leaves leading with the heads; None for kinds without."""

    kind: PositionEmbedding
    num_heads: int
    key_dim: int
    bidirectional: bool
    """Keys may come after the query (in an encoder)."""
    fan_in: bool = False
    """Draw Transformer-XL's kernel uniformly within 1 / sqrt(fan_in) instead of Glorot's range for one head."""

    @nn.compact
    def __call__(self) -> Bias | None:
        if ":" in self.kind:
            sizes = self.num_heads, self.key_dim
            return (
                None if custom_positions(self.kind) else make_part_per_head(self, "bias", parse_bias(self.kind), *sizes)
            )
        if self.kind == "alibi":
            return ALiBi(jnp.asarray(ALiBi.slopes(self.num_heads)))
        if self.kind == "t5":
            table = self.param("table", nn.initializers.normal(0.02), (self.num_heads, BUCKETS))
            return T5Bias(table, bidirectional=self.bidirectional)
        if self.kind == "shaw":  # shared by the heads
            table = self.param("table", nn.initializers.xavier_uniform(), (2 * REACH + 1, self.key_dim))
            return ShawBias(jnp.broadcast_to(table[None], (self.num_heads, *table.shape)))  # [H, R, D]
        if self.kind == "transformer_xl":
            width = self.num_heads * self.key_dim
            width += width % 2
            start = within(width**-0.5) if self.fan_in else nn.initializers.xavier_uniform(batch_axis=0)
            return TransformerXLBias(self.param("kernel", start, (self.num_heads, self.key_dim, width)))
        return None


def relative_biases(
    kind: PositionEmbedding, heads: int, key_width: int, layers: int, bidirectional: bool, fan_in: bool = False
) -> list[RelativeBias]:
    """The biases of a stack: one for all its layers, or one for each of Shaw's and Transformer-XL's."""
    is_per_layer = kind in ("shaw", "transformer_xl")
    return [RelativeBias(kind, heads, key_width, bidirectional, fan_in) for _ in range(layers if is_per_layer else 1)]
