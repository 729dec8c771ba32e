"""Load what a run left: its task with the parameters, or its weights alone."""

from pathlib import Path

from attention_jax import config as configs
from attention_jax.run_directory import check_data, final_of, read_config


def load(directory: Path, config: configs.Config | None = None):
    """(config, task, params) of a finished run; `config` is its configuration if that was read before."""
    import jax

    from attention_jax import tasks
    from attention_jax.train.checkpoint import load_params

    config = config or read_config(directory)
    final = final_of(directory, config)
    task = tasks.build(config)
    check_data(directory, task)
    return config, task, load_params(final, jax.eval_shape(task.init, jax.random.PRNGKey(0)))


def load_weights(directory: Path, **trusted):
    """(config, params) of a finished run, whose data need not be at hand; `trusted` is for `read_config`."""
    from attention_jax.train.checkpoint import read_params

    config = read_config(directory, **trusted)
    return config, read_params(final_of(directory, config))


def weights_of(place: Path, **trusted):
    """The weights (weights/exchange.py) in a run that has ended, in a file or in a directory with one; `trusted` is for
    `read_config`."""
    from attention_jax.weights import exchange

    if not (place / "checkpoints").is_dir() and not (place / "final").is_dir():
        return exchange.read(place)
    config, params = load_weights(place, **trusted)
    return exchange.Weights(config.model, exchange.flat(params), str(place))
