"""A Transformer of plain functions whose attention has a score of one's own: weights are a dictionary of arrays."""

import jax
import jax.numpy as jnp
import task

from attention_jax import attend_heads


def attention(w, x):
    """Multi-head attention, [B, T, D] -> [B, T, D]."""
    query, key, value = (jnp.einsum("btd,dhe->bthe", x, w[name]) for name in ("query", "key", "value"))
    return jnp.einsum("bthe,hed->btd", attend_heads(query, key, value, score=task.laplace), w["out"])


def transformer(w, tokens):
    """Tokens [B, T] to logits [B, T, TOKENS]."""
    x = w["embedding"][tokens] + w["position"]
    x = x + attention(w, x)
    x = x + jax.nn.relu(x @ w["up"]) @ w["down"]
    return x @ w["readout"]


def main() -> list[float]:
    """Train from the common initial weights; return the losses."""
    w = {name: jnp.asarray(x) for name, x in task.weights().items()}
    return task.train(w, lambda w, tokens: task.loss(transformer(w, tokens), tokens))


if __name__ == "__main__":
    print(main()[-1])
