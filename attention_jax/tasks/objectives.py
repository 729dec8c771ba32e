"""The training loss over classes: cross-entropy, or the function that `--train.loss` names."""

from attention_jax.config import Train, import_object
from attention_jax.errors import InputError
from attention_jax.ops.losses import linear_cross_entropy, masked_cross_entropy, soft_cap


def class_loss(train: Train, logits, targets, mask):
    """Return (sum, count) of the loss of `logits` [..., V] for the classes `targets` [...] where `mask` [...] is not 0;
    a fractional mask weights."""
    loss = masked_cross_entropy if train.loss == "cross_entropy" else custom_loss(train.loss)
    return loss(logits, targets, mask, train.label_smoothing)


def readout_loss(train: Train, hidden, kernel, bias, targets, mask, cap: float = 0.0):
    """Return `class_loss` of the logits hidden [N, D] @ kernel [D, V] + bias [V] under a soft cap; cross-entropy
    without a cap never holds them all at once (`linear_cross_entropy`)."""
    if train.loss == "cross_entropy" and not cap:
        return linear_cross_entropy(hidden, kernel, bias, targets, mask, train.label_smoothing)
    return class_loss(train, soft_cap(hidden @ kernel + bias[None], cap), targets, mask)


def custom_loss(path: str):
    """Return the function with the arguments of `masked_cross_entropy` at an import path, with its results checked."""
    function = import_object(path)

    def loss(*arguments):
        result = function(*arguments)
        if not isinstance(result, tuple) or [getattr(x, "shape", None) for x in result] != [(), ()]:
            raise InputError(
                f"--train.loss {path} must return two arrays of shape (), the sum of the losses and the sum of the "
                f"mask; got {result!r}"
            )
        return result

    return loss
