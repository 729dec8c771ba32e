"""Learning algorithms from examples: Neural Turing Machines, and LSTMs beside them, on the tasks of `data/algorithmic.py`."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import InputError
from attention_jax.data import algorithmic, batches
from attention_jax.models import ntm
from attention_jax.report.figures import over_time
from attention_jax.tasks import Task
from attention_jax.train.parallel import over_rows

SHOWN = 20
"""Sequences in each set that measures generalisation."""
BEYOND = {  # task -> {name of a set: arguments of its generator}; sizes the machine never saw in training
    "copy": {f"length_{n}": {"shortest": n, "longest": n} for n in (10, 20, 30, 50, 120)},
    "repeat_copy": {
        "length_10_times_10": {"shortest": 10, "longest": 10, "fewest": 10, "most": 10},
        "length_20_times_10": {"shortest": 20, "longest": 20, "fewest": 10, "most": 10},
        "length_10_times_20": {"shortest": 10, "longest": 10, "fewest": 20, "most": 20},
    },
    "associative_recall": {f"items_{n}": {"fewest": n, "most": n} for n in (6, 10, 15, 20)},
    "ngrams": {},
    "priority_sort": {},
}


def build_model(config, outputs: int):
    """The Flax module of a model configuration."""
    kind = {"NTM": ntm.NTM, "StackedLSTM": ntm.StackedLSTM}[type(config).__name__]
    return kind(outputs, **dataclasses.asdict(config))


def ends(length: np.ndarray) -> tuple[int, ...]:
    """Where sequences may be cut: at quarters of the longest one. A program is compiled for each, and padding costs a quarter at most.

    >>> ends(np.array([3, 41, 11])), ends(np.array([200, 200]))
    ((11, 21, 31, 41), (200,))
    """
    longest = int(length.max())
    cuts = (-(-longest * quarter // 4) for quarter in (1, 2, 3, 4))
    return tuple(cut for cut in cuts if cut >= length.min())


def build(config) -> Task:
    """The task of a machine on one of the five tasks."""
    train, valid = algorithmic.load(config.data, config.train.seed)
    generate, outputs = algorithmic.GENERATORS[config.data.task], train.targets.shape[-1]
    model, cuts = build_model(config.model, outputs), ends(train.length)
    rng = np.random.default_rng([config.train.seed, 1])
    beyond = {name: generate(rng, SHOWN, **arguments) for name, arguments in BEYOND[config.data.task].items()}

    def costs(params, batch):
        """Each row's cost in nats and its number of wrong bits, [B]."""
        logits, _ = model.apply({"params": params}, batch["inputs"])
        targets, mask = batch["targets"].astype(jnp.float32), batch["mask"][..., None].astype(jnp.float32)
        cost = jax.nn.softplus(logits) - targets * logits  # -log p(target) of independent bits
        return (cost * mask).sum((1, 2)), jnp.where((logits > 0) != (targets > 0.5), mask, 0.0).sum((1, 2))

    def loss(params, batch, rng):
        longest = jnp.max(batch["length"])
        cut = [
            lambda end=end: costs(params, {name: batch[name][:, :end] for name in ("inputs", "targets", "mask")})
            for end in cuts
        ]
        nats, wrong = jax.lax.switch(jnp.searchsorted(jnp.array(cuts), longest), cut)
        total, count = (nats * batch["weight"]).sum(), batch["weight"].sum()
        return (
            total,
            count,
            {
                "bits_per_sequence": (total / jnp.log(2.0), count),
                "wrong_bits": ((wrong * batch["weight"]).sum(), count),
            },
        )

    def measure(params, data) -> tuple[np.ndarray, np.ndarray]:
        """Bits and wrong bits of every sequence of a set."""
        nats, wrong = over_rows(costs, params, data._asdict(), 200)
        return nats / np.log(2.0), wrong

    def evaluate(params, full: bool) -> dict:
        bits, wrong = measure(params, valid)
        values = {"valid.loss": float(bits.mean() * np.log(2.0)), "valid.bits_per_sequence": float(bits.mean())}
        values["valid.wrong_bits"] = float(wrong.mean())
        if config.data.task == "ngrams":
            values["valid.bits_over_optimum"] = float(bits.mean() - optimum.mean())
        for name, data in beyond.items() if full else ():
            bits, wrong = measure(params, data)
            values |= {f"test.bits_{name}": float(bits.mean()), f"test.wrong_bits_{name}": float(wrong.sum())}
        if full and config.data.task == "copy":
            values["test.wrong_bits_to_50"] = sum(values[f"test.wrong_bits_length_{n}"] for n in (10, 20, 30, 50))
        return values

    @jax.jit
    def look(params, inputs):
        return model.apply({"params": params}, inputs, look=True)

    def draw(params, data, row: int, path: Path) -> Path:
        """Inputs, targets, outputs and weightings of one sequence (figures 4 to 6 of the paper)."""
        steps = int(data.length[row])
        logits, seen = jax.device_get(look(params, data.inputs[row : row + 1, :steps]))
        mask = data.mask[row, :steps, None]
        panels = {
            "inputs": data.inputs[row, :steps],
            "targets": data.targets[row, :steps],
            "outputs": mask / (1 + np.exp(-logits[0])),
        }
        used = (
            np.max([weights[0].max((0, 1)) for weights in seen.values()], axis=0) > 0.05 if seen else []
        )  # ever looked at
        for name, weights in seen.items():
            heads = weights[0][:, :, used].swapaxes(0, 1)  # [heads, T, N]
            panels |= {f"{name} weights" + (f" {i}" if len(heads) > 1 else ""): head for i, head in enumerate(heads)}
        return over_time(panels, path)

    def report(params, directory: Path) -> list[Path]:
        longest = int(valid.length.argmax())
        figures = [draw(params, valid, longest, directory / f"{config.data.task}.png")]
        return figures + [
            draw(params, data, 0, directory / f"{config.data.task}_{name}.png")
            for name, data in list(beyond.items())[-2:]
        ]

    def predict(params, texts, figure=None) -> list[str]:
        return [predict_one(params, text, figure if i == 0 else None) for i, text in enumerate(texts)]

    def predict_one(params, text: str, figure) -> str:
        words = text.split()
        if (
            config.data.task != "copy"
            or not words
            or any(len(word) != outputs or set(word) - {"0", "1"} for word in words)
        ):
            raise InputError(
                f"needed are words of {outputs} bits for a machine that copies, such as '10110010 01101100'; got {text!r}"
            )
        data = algorithmic.copy(np.random.default_rng(0), 1, len(words), len(words))
        data.inputs[0, : len(words), :outputs] = data.targets[0, len(words) + 1 :] = [
            [int(bit) for bit in word] for word in words
        ]
        logits = np.asarray(look(params, data.inputs)[0][0, len(words) + 1 :])
        if figure:
            draw(params, data, 0, Path(figure))
        return " ".join("".join("1" if x > 0 else "0" for x in row) for row in logits)

    def describe() -> dict:
        asked = float(train.mask.sum(1).mean() * outputs)
        facts = {"sequences": len(train.length), "longest": int(train.length.max()), "bits_asked_for": asked}
        if config.data.task == "ngrams":
            facts |= {
                "optimum_bits": float(optimum.mean()),
                "optimum_standard_error": float(optimum.std() / len(optimum) ** 0.5),
            }
        return facts

    if config.data.task == "ngrams":
        best, bits = algorithmic.ngram_optimum(valid.targets[..., 0]), valid.targets[..., 0]
        optimum = -np.log2(np.where(bits == 1, best, 1 - best)).sum(1)  # [N] bits

    return Task(
        init=jax.jit(lambda rng: model.init(rng, jnp.zeros((1, 1, train.inputs.shape[-1])))["params"]),
        loss=loss,
        buckets=(train._asdict(),),
        plan=functools.partial(plan, config),
        evaluate=evaluate,
        report=report,
        predict=predict,
        describe=describe,
    )


def plan(config, epoch: int, steps_per_call: int) -> list[batches.Chunk]:
    """An epoch takes the next `epoch_sequences` of the training set, from its start again once they are used up."""
    wanted, total = config.data.epoch_sequences, config.data.sequences
    chunks = batches.plan(config.train.seed, epoch, [min(wanted, total)], [config.train.batch_size], steps_per_call)
    return [chunk._replace(indices=(chunk.indices + epoch * wanted) % total) for chunk in chunks]
