"""A Transformer in Flax NNX whose attention has a score of one's own."""

import jax.numpy as jnp
import task
from flax import nnx

from attention_jax import attention_fn


class Transformer(nnx.Module):
    """Tokens [B, T] to logits [B, T, TOKENS]."""

    def __init__(self, rngs: nnx.Rngs):
        linear = lambda *sizes: nnx.Linear(*sizes, use_bias=False, rngs=rngs)
        self.embedding = nnx.Embed(task.TOKENS, task.WIDTH, rngs=rngs)
        self.position = nnx.Param(jnp.zeros((task.LENGTH, task.WIDTH)))
        options = {"use_bias": False, "decode": False, "rngs": rngs}
        self.attention = nnx.MultiHeadAttention(
            task.HEADS, task.WIDTH, attention_fn=attention_fn(score=task.laplace), **options
        )
        self.up, self.down, self.readout = (
            linear(task.WIDTH, 64),
            linear(64, task.WIDTH),
            linear(task.WIDTH, task.TOKENS),
        )

    def __call__(self, tokens):
        x = self.embedding(tokens) + self.position[...]
        x = x + self.attention(x)
        x = x + self.down(nnx.relu(self.up(x)))
        return self.readout(x)


def main() -> list[float]:
    """Train from the common initial weights; return the losses."""
    w, model = {name: jnp.asarray(x) for name, x in task.weights().items()}, Transformer(nnx.Rngs(0))
    for name in ("query", "key", "value", "out"):
        getattr(model.attention, name).kernel[...] = w[name]
    for name in ("up", "down", "readout"):
        getattr(model, name).kernel[...] = w[name]
    model.embedding.embedding[...], model.position[...] = w["embedding"], w["position"]
    graph, params, other_state = nnx.split(model, nnx.Param, ...)
    return task.train(params, lambda p, tokens: task.loss(nnx.merge(graph, p, other_state)(tokens), tokens))


if __name__ == "__main__":
    print(main()[-1])
