"""Statistics of attention during training (`--train.log-attention N`): the largest logit, the entropy and the weight of
the first token, of each layer and head.

They are computed beside the training step, by a program of their own over the first batch of epoch 0, always the same
examples, so that the step and its numbers do not change.
"""

import jax

from attention_jax.errors import InputError

STATISTICS = ("max_logit", "entropy", "first_token")


class AttentionLog:
    """A function of parameters that returns {"attention.LAYER.HEAD.STATISTIC": number}."""

    def __init__(self, task, seed: int):
        self.batch, self.rng = task.first_batch(), jax.random.key(seed)
        self.compiled = jax.jit(task.attention_statistics)

    def check(self, params):
        """Raise InputError for a model without multi-head attention."""
        if not jax.eval_shape(self.compiled, params, self.batch, self.rng):
            raise InputError(
                "--train.log-attention needs a model with multi-head attention (Transformers, ViT); leave it 0"
            )

    def __call__(self, params) -> dict[str, float]:
        statistics = jax.device_get(self.compiled(params, self.batch, self.rng))
        numbers = ((layer, head, row) for layer, heads in statistics.items() for head, row in enumerate(heads))
        return {
            f"attention.{layer}.{head}.{name}": float(value)
            for layer, head, row in numbers
            for name, value in zip(STATISTICS, row, strict=True)
        }
