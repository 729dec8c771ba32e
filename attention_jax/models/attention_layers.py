"""The layer of self-attention that `--model.attention` names: a subclass of `MultiHeadAttention`, or any Flax module
that is made as Module(block) and takes the same call.

A subclass has all options of the heads, a cache and taps, and usually replaces `attend_heads`; it then has differential
attention, whose heads have two maps, only if its attribute `reads` names it. Any other module is called as
attention(query [B, Q, D], key [B, T, D], value [B, T, D], bias=, mask=, train=, return_weights=), with those of the
options that a layer needs, and returns (output [B, Q, D], weights [B, H, Q, T] or None). What it does not take is
refused: an option of the call by its signature, options of the heads unless its attribute `reads` names them.
Arguments in parentheses are fields of its own, in their order: `mine.layers:MemorySlots(8)`.
"""

import dataclasses
import inspect

import flax.linen as nn
import jax.numpy as jnp

from attention_jax.config import option_name
from attention_jax.config.models import ATTENTIONS
from attention_jax.config.options import resolve_name
from attention_jax.errors import InputError
from attention_jax.models.multihead import MultiHeadAttention

HEAD_OPTIONS = (
    "score", "normalizer", "head_pool", "bias", "num_kv_heads", "key_dim", "value_dim", "position_embedding",
    "normalize_qk", "output_gate", "differential", "differential_v2", "exclusive", "value_residual", "value_embeddings",
)  # fmt: skip
"""Options of a block that its layer of self-attention computes; of position embeddings the rotary ones."""
TWO_MAPS = ("differential", "differential_v2")
"""Those that give a head two maps: shapes that a layer with its own `attend_heads` may not expect."""
HEAD_FIELDS = [field.name for field in dataclasses.fields(MultiHeadAttention) if field.name not in ("parent", "name")]
NEEDS = {
    "mask": "causal layers, padding and --model.mask need",
    "bias": "biases of relative positions need",
    "train": "training needs",
    "return_weights": "attention maps need",
}
"""{option of a call: who needs it}"""


def attention_class(block) -> tuple[type[nn.Module], dict]:
    """The class that `block.attention` names, and the arguments behind its name as {field of it: value}.

    Raises InputError for what is no Flax module, for more arguments than it has fields of its own, for fields without
    a value, and for options of the block that it does not read."""
    (kind, arguments), flag = resolve_name(block.attention, ATTENTIONS), f"--model.attention {block.attention}"
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise InputError(f"{flag} must be a Flax module, got {kind!r}")
    declared = {field.name: field for field in dataclasses.fields(kind) if field.name not in ("parent", "name")}
    fields = [*declared]
    if issubclass(kind, MultiHeadAttention):
        fields, advice = fields[len(HEAD_FIELDS) :], ""
        options = TWO_MAPS if kind.attend_heads is not MultiHeadAttention.attend_heads else ()
    else:  # whose first field is the block
        fields, options, advice = fields[1:], HEAD_OPTIONS, ", or inherit from MultiHeadAttention"
    if len(arguments or ()) > len(fields):
        names = ", ".join(fields) or "none"
        raise InputError(f"{flag} must have an argument for each of its own fields ({names}) at most")
    missing = dataclasses.MISSING
    unset = [declared[name] for name in fields[len(arguments or ()) :]]
    if required := [field.name for field in unset if field.default is missing and field.default_factory is missing]:
        raise InputError(f"{flag} has no value for its fields {', '.join(required)}: give values in parentheses")
    defaults = {field.name: field.default for field in dataclasses.fields(block)}
    for name in options:
        value = getattr(block, name)
        is_used = value == "rotary" if name == "position_embedding" else value != defaults[name]
        if is_used and name not in getattr(kind, "reads", ()):
            raise InputError(
                f"{flag} does not read {option_name(name, 'model')} {value}: leave it out, or name {name} in the "
                f"module's attribute reads{advice}"
            )
    return kind, dict(zip(fields, arguments or ()))


def check_cache(block):
    """Raise InputError for a layer that decodes no position by position."""
    if not issubclass(attention_class(block)[0], MultiHeadAttention):
        raise InputError(
            f"--model.attention {block.attention} has no cache of keys and values, which decoding needs: inherit from "
            "MultiHeadAttention"
        )


def call_attention(attention: nn.Module, query, inputs, **options):
    """Self-attention of queries [B, Q, D] over the inputs [B, T, D] of a layer: (output [B, Q, D], weights or None).

    Raises InputError for an option of the call that a module of its own does not take, and for another result.
    """
    if isinstance(attention, MultiHeadAttention):
        return attention(query, inputs, inputs, **options)
    name, parameters = type(attention).__name__, inspect.signature(type(attention).__call__).parameters
    options = {option: value for option, value in options.items() if value is not None and value is not False}
    for option in options.keys() - parameters.keys():
        raise InputError(f"--model.attention {name}: its call takes no {option}=, which {NEEDS[option]}")
    result = attention(query, inputs, inputs, **options)
    shape = jnp.shape(result[0]) if isinstance(result, tuple) and len(result) == 2 else None
    if shape != query.shape or ("return_weights" in options and result[1] is None):
        raise InputError(
            f"--model.attention {name} must return (output [B, Q, D] = {[*query.shape]}, weights or, without "
            f"return_weights, None), got {'no pair' if shape is None else [*shape]}"
        )
    return result


def attend_with_entries(attention: nn.Module, h, first_value, embedding, *, mask, bias, **flags):
    """Self-attention over h [B, T, D] as a decoder layer has it: (output, weights or None, what a cache holds: keys,
    values and logarithms of forget gates, None without). Other values are those of `MultiHeadAttention.project_kv`."""
    if not isinstance(attention, MultiHeadAttention):
        return *call_attention(attention, h, h, mask=mask, bias=bias, **flags), (None, None, None)
    log_gates = attention.forget(h)
    bias = attention.add_bias(bias, log_gates)
    query, (key, value) = attention.project_q(h), attention.project_kv(h, h, 0, first_value, embedding)
    return *attention.attend(query, key, value, h, mask=mask, bias=bias, **flags), (key, value, log_gates)
