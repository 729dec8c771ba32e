"""A Transformer in Equinox whose attention has a score of one's own: `attend_heads` in a module."""

import equinox as eqx
import jax
import jax.numpy as jnp
import task

from attention_jax import attend_heads


class Attention(eqx.Module):
    """Multi-head attention, [B, T, D] -> [B, T, D]."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    out: jax.Array

    def __call__(self, x):
        query, key, value = (jnp.einsum("btd,dhe->bthe", x, w) for w in (self.query, self.key, self.value))
        return jnp.einsum("bthe,hed->btd", attend_heads(query, key, value, score=task.laplace), self.out)


class Transformer(eqx.Module):
    """Tokens [B, T] to logits [B, T, TOKENS]."""

    embedding: jax.Array
    position: jax.Array
    attention: Attention
    up: jax.Array
    down: jax.Array
    readout: jax.Array

    def __call__(self, tokens):
        x = self.embedding[tokens] + self.position
        x = x + self.attention(x)
        x = x + jax.nn.relu(x @ self.up) @ self.down
        return x @ self.readout


def main() -> list[float]:
    """Train from the common initial weights; return the losses."""
    w = {name: jnp.asarray(x) for name, x in task.weights().items()}
    attention = Attention(*(w.pop(name) for name in ("query", "key", "value", "out")))
    return task.train(Transformer(attention=attention, **w), lambda model, tokens: task.loss(model(tokens), tokens))


if __name__ == "__main__":
    print(main()[-1])
