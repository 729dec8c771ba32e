"""One step of a decoder whose attention feeds its recurrence: a pure function, scanned in training and called alone in decoding.

before       the state before the step is the query, the context is part of the step's input (Bahdanau et al. 2015);
first_layer  the same for the first layer alone; the layers above receive its context too (GNMT, Wu et al. 2016);
between      two transitions around the attention: on the token, then on the context ("conditional GRU", Firat & Cho 2016);
feeding      the state after the step is the query, and what came of it is part of the next step's input (Luong et al. 2015, 3.3).
"""

from typing import NamedTuple

import jax.numpy as jnp

from attention_jax.models.alignment import weigh
from attention_jax.ops import cells

SERIAL = ("before", "first_layer", "between", "feeding")


class Plan(NamedTuple):
    """What is fixed about a decoder step."""

    attention: str
    residual: bool
    window: str
    window_size: int
    readout: str
    projects_query: bool


def finish(readout: str, product):
    """The readout's nonlinearity: tanh, or the larger one of each pair (maxout, Goodfellow et al. 2013)."""
    if readout == "tanh":
        return jnp.tanh(product)
    return product.reshape(*product.shape[:-1], -1, 2).max(axis=-1)


def feeding_step(plan: Plan, dot, shared, carry, x):
    """(carry, x) -> (carry, y).

    Args:
      dot: `dot(name, v)` multiplies by a weight; see `Translator.weights`.
      shared: "alignment" (what `weigh` needs), "bias" and "inner_bias" (a list with one for each layer), "readout_bias".
      carry: "states" (per layer), "feed" [B, F], "time" [B].
      x: "input" [B, G] (the embedded token, projected), "embedded" [B, E], "noise" (dropout between layers, one [B, H] each, or none).

    y: "hidden" [B, H], "context" [B, C], "weights" [B, S], and "features" [B, R] where the readout is fed back.
    """
    states, z, time, new, h = carry["states"], x["input"], carry["time"], [], None

    def look(query):
        projected = dot("query", query)[:, None] if plan.projects_query else None
        weights = weigh(shared["alignment"], plan.window, plan.window_size, query[:, None], time[:, None], projected)[
            :, 0
        ]  # [B, S]
        return dot("pool", weights), weights

    if plan.attention in ("before", "first_layer"):
        context, weights = look(states[-1][0])
        z = z + dot("context", context)
    elif plan.attention == "feeding":
        z = z + dot("feed", carry["feed"])
    for i, state in enumerate(states):
        if i > 0:
            below = h * x["noise"][i - 1] if x["noise"] else h
            z = dot(f"input_{i}", below) + shared["bias"][i][None]
        state = cells.advance(z, dot(f"recurrent_{i}", state[0]), state, shared["inner_bias"][i])
        new.append(state)
        h = state[0] + h if plan.residual and i > 0 else state[0]
    if plan.attention == "between":
        context, weights = look(h)
        z = dot("context", context) + shared["bias"][-1][None]
        new = [cells.advance(z, dot("recurrent_second", h), new[0], shared["inner_bias"][-1])]
        h = new[0][0]
    feed, y = carry["feed"], {}
    if plan.attention == "feeding":
        context, weights = look(h)
        feed = context
        if plan.readout in ("tanh", "maxout"):
            parts = [h, context] + ([x["embedded"]] if "embedded" in x else [])
            feed = finish(plan.readout, dot("readout", jnp.concatenate(parts, axis=-1)) + shared["readout_bias"][None])
            y = {"features": feed}
    return {"states": new, "feed": feed, "time": time + 1}, {"hidden": h, "context": context, "weights": weights, **y}
