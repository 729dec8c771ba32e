"""attention_jax: attention is a differentiable lookup - score, mask, normalise, pool.

The rooms: `ops` (pure mathematics), `data`, `models`, `decode`, `train`, `report`, `sweep`, and `tasks`, which joins them.
`tests/test_imports.py` holds the table of who may import whom.
"""

__version__ = "0.1.0"


class InputError(ValueError):
    """Something the user gave is wrong. The message is ONE line: what was required, what came, what to do.

    `launch.py` prints it as `error: ...` and exits with code 2, without a traceback.
    """


class Interrupted(Exception):
    """SIGINT or SIGTERM came; everything up to `step` is in a checkpoint."""

    def __init__(self, step: int):
        super().__init__(f"interrupted; the checkpoint of step {step} is complete")
        self.step = step


class Diverged(Exception):
    """The loss was no finite number at `step`, or one so large that its square is none in float32."""

    def __init__(self, step: int, loss: float):
        super().__init__(
            f"the loss was {loss:.4g} at step {step}; a smaller --optim.learning-rate or --optim.clip-norm 1 usually helps"
        )
        self.step, self.loss = step, loss


def lower_is_better(metric: str) -> bool:
    """Whether less of a metric is more, by its name.

    >>> lower_is_better("valid.loss"), lower_is_better("valid.bleu")
    (True, False)
    """
    return any(word in metric for word in ("loss", "perplexity", "error", "bits"))
