"""Sparse autoencoders of SmolLM2's residual stream: three sizes, three seeds, one compiled program.

Chapter: theory of attention
Source: Gao et al. 2024, "Scaling and evaluating sparse autoencoders" (arXiv 2406.04093), sections 2.3 and 4.1
Data: The Time Machine, tiny Shakespeare; `--data.time-machine FILE --data.shakespeare FILE`
Command: python launch.py reproduce sparse_autoencoders
Cost: 69 minutes

The activations are those of `decoder.14.residual_out` of SmolLM2-135M-Instruct (4-bit weights, 30 layers, 576 numbers)
for 340 windows of 256 tokens of two books, as `attention_jax.interpret.activations` writes them; every tenth window is
held out, and the first token of each, the attention sink, left out. The autoencoders (experiments/papers/
sparse_autoencoder.py) have the 32 largest of 512, 1,024 or 2,048 features. All nine are members of one population.

Measured on the held-out windows: the variance that is explained; active features of a token; features that are never
active; and the loss of SmolLM2 with the reconstruction in the place of the activation, beside that without a change and
with the mean. The loss recovered is the share of the difference between the mean and no change that is not lost. These
are measurements: nothing is claimed.
"""

from pathlib import Path

import numpy as np

from attention_jax.config import Config, Grid, Optim, Train, replace
from experiments.papers.options import Activations, SparseAutoencoderConfig, TwoBooks
from experiments.softmax_in_a_real_model import even_windows, read_or_compute, smollm2

SEEDS = 1
SITE = "decoder.14.residual_out"
SIZES, MEMBERS = (512, 1024, 2048), 3
MEASURES = ("explained", "l0", "dead", "loss", "recovered")


def config() -> Config:
    return Config(
        "sparse_autoencoders",
        TwoBooks(windows=170, window_tokens=256),
        SparseAutoencoderConfig(),
        Optim(learning_rate=1e-3),
        Train(batch_size=512, total_epochs=4, save_minutes=0),
    )


def smoke() -> Config:
    sizes = {"model.k": 4, "model.size": 64.0, "model.largest": 64}
    return replace(config(), **{"data.windows": 10, "data.window_tokens": 16, "train.total_epochs": 1} | sizes)


def book_windows(config: Config, encode) -> np.ndarray:
    """Windows [2 N, T] of tokens of both books."""
    from attention_jax.data.public_texts import shakespeare, time_machine

    data = config.data
    books = time_machine(data.time_machine), shakespeare(data.shakespeare)
    return np.concatenate([even_windows(encode(book), 0.0, 1.0, data.windows, data.window_tokens) for book in books])


def member_configs(config: Config, store: Path) -> list[Config]:
    """The configurations of all members: the sizes are those of the largest, halved."""
    largest = config.model.largest
    data = Activations(str(store), SITE)
    return [
        replace(config, data=data, **{"model.size": largest * size / SIZES[-1], "train.seed": seed})
        for size in SIZES
        for seed in range(config.train.seed, config.train.seed + MEMBERS)
    ]


def losses_with(model, params, windows, edits) -> float:
    """The mean loss, in nats per token, of windows with what `edits` sets."""
    import jax
    import jax.numpy as jnp

    from attention_jax import interpret

    @jax.jit
    def loss(params, row, edits):
        logits = interpret.run(model, params, row, set=edits)[0][0, :-1].astype(jnp.float32)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), row[0, 1:, None], axis=1).mean()

    return float(np.mean([loss(params, row[None], edits) for row in jnp.asarray(windows)]))


def study(config: Config, directory: Path) -> dict:
    """Write the activations, train the population, and measure its members."""
    from attention_jax import interpret, load_pretrained, load_run, tasks
    from attention_jax.sweep import batch

    loaded = load_pretrained(config.train.init_weights or smollm2())
    windows = book_windows(config, lambda text: loaded.tokenizer.encode(text, special=False))
    interpret.activations(loaded, windows.tolist(), SITE, directory / "activations")
    members = [
        batch.Member(member, directory / f"{member.model.size:.0f}" / str(member.train.seed))
        for member in member_configs(config, directory / "activations")
    ]
    built = [tasks.build(member.config) for member in members]
    assert len(batch.classes(built, [member.config.train.seed for member in members])) == 1
    batch.train_batch(members, built, directory)

    held_out = windows[:: round(1 / members[0].config.data.held_out)]
    after_first = range(members[0].config.data.skip_first, windows.shape[1])
    lm_loss = lambda edit: losses_with(loaded.model, loaded.params, held_out, {SITE: edit} if edit else {})
    mean = interpret.Part(built[0].data.input_scale.mean, positions=after_first)
    reference = read_or_compute(directory / "reference.json", lambda: {"plain": lm_loss(None), "mean": lm_loss(mean)})
    rows: dict[str, list[dict]] = {}
    for member, task in zip(members, built, strict=True):
        run = load_run(member.directory)
        edit = interpret.Part(function=task.reconstruct(run.params), positions=after_first)
        loss = read_or_compute(member.directory / "lm_loss.json", lambda edit=edit: {"loss": lm_loss(edit)})["loss"]
        recovered = (reference["mean"] - loss) / (reference["mean"] - reference["plain"])
        row = {name.removeprefix("valid."): x for name, x in run.result["metrics"].items() if name != "valid.loss"}
        rows.setdefault(f"{member.config.model.size:.0f}", []).append(row | {"loss": loss, "recovered": recovered})
    metrics = {f"lm_loss.{name}": value for name, value in reference.items()}
    for size, members_of_size in rows.items():
        for name in MEASURES:
            values = [row[name] for row in members_of_size]
            metrics |= {f"{size}.{name}": float(np.median(values))}
            metrics |= {f"{size}.{name}_low": min(values), f"{size}.{name}_high": max(values)}
    return metrics


GRIDS = tuple(
    Grid(f"{title}, median of {MEMBERS} seeds", {f"{size} features": f"{size}.{name}" for size in SIZES}, ("",))
    for name, title in {
        "explained": "Explained variance",
        "l0": "Active features of a token",
        "dead": "Share of features that are never active",
        "loss": "Loss with the reconstruction, nats a token",
        "recovered": "Loss recovered",
    }.items()
)
