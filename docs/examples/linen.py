"""A Transformer in Flax Linen whose attention has a score of one's own."""

import flax.linen as nn
import jax.numpy as jnp
import task

from attention_jax import attention_fn


class Transformer(nn.Module):
    """Tokens [B, T] to logits [B, T, TOKENS]."""

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(task.TOKENS, task.WIDTH, name="embedding")(tokens)
        x = x + self.param("position", nn.initializers.normal(), (task.LENGTH, task.WIDTH))
        attention = attention_fn(score=task.laplace)
        x = x + nn.MultiHeadAttention(task.HEADS, use_bias=False, attention_fn=attention, name="attention")(x)
        hidden = nn.relu(nn.Dense(64, use_bias=False, name="up")(x))
        x = x + nn.Dense(task.WIDTH, use_bias=False, name="down")(hidden)
        return nn.Dense(task.TOKENS, use_bias=False, name="readout")(x)


def main() -> list[float]:
    """Train from the common initial weights; return the losses."""
    w = {name: jnp.asarray(x) for name, x in task.weights().items()}
    params = {name: {"kernel": w[name]} for name in ("up", "down", "readout")}
    params["attention"] = {name: {"kernel": w[name]} for name in ("query", "key", "value", "out")}
    params |= {"embedding": {"embedding": w["embedding"]}, "position": w["position"]}
    return task.train(params, lambda p, tokens: task.loss(Transformer().apply({"params": p}, tokens), tokens))


if __name__ == "__main__":
    print(main()[-1])
