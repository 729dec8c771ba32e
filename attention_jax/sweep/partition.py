"""Grouping of runs that can train in one compiled program, without JAX: the scheduler must not use a device."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attention_jax import config as configs


class Member(NamedTuple):
    """A run of a sweep and its directory."""

    config: configs.Config
    directory: Path


def shape(config: configs.Config) -> tuple:
    """Return what the members of one population have in common: all options but the seed and the `traced` numbers.

    Of the latter only whether they are zero: without dropout, clipping or smoothing the program lacks the operation. So
    a member computes exactly what it would compute alone.

    >>> a = configs.Config("x", configs.Dates(), configs.LuongSeq2seqConfig())
    >>> shape(a) == shape(configs.replace(a, **{"optim.learning_rate": 0.1, "train.seed": 3}))
    True
    >>> [shape(a) == shape(configs.replace(a, **change)) for change in ({"model.hidden_size": 3}, {"optim.eps": 0.0})]
    [False, False]
    """
    kinds = (type(config.data), type(config.model), type(config.decode))
    options = ((name, value != 0 if info.traced else value) for name, info, value in configs.walk(config))
    return (*kinds, *(option for option in options if option[0] != "train.seed"))


def why_alone(config: configs.Config) -> str:
    """Return why a run cannot be in a population, or "".

    >>> why_alone(configs.Config("x", configs.Dates(), configs.LuongSeq2seqConfig(), train=configs.Train(patience=2)))
    ''
    """
    train = config.train
    if train.shard_parameters:
        return "its parameters are divided over all devices"
    if config.data is not None and config.data.stream == "always":
        return "its data are read while it trains"
    if train.log_attention:
        return "the statistics of its attention are logged"
    if train.init_weights:
        return "it begins with weights that were given"
    if train.patience and train.average_last:
        return "the checkpoints of its last epochs would be gone when the others come to their end"
    return ""


def groups(members: Sequence[configs.Config], most: int, slots: int) -> list[list[int]]:
    """Return groups of indices of members that train together: at most `most` each, and at least `slots` groups if
    possible.

    Members of a group have equal shapes; those that cannot be in a population are alone.

    >>> a = configs.Config("x", configs.Dates(), configs.LuongSeq2seqConfig())
    >>> b = configs.replace(a, **{"model.hidden_size": 3})
    >>> groups([a, b, a, a, b], most=2, slots=1)
    [[0, 2], [3], [1, 4]]
    """
    by_shape: dict[tuple, list[int]] = {}
    alone = []
    for index, config in enumerate(members):
        if why_alone(config):
            alone.append([index])
        else:
            by_shape.setdefault(shape(config), []).append(index)
    size = max(1, min(most, -(-len(members) // slots)))
    return [indices[i : i + size] for indices in by_shape.values() for i in range(0, len(indices), size)] + alone
