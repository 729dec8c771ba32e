"""How many heads a trained Transformer can spare: BLEU against the share of attention heads removed.

Chapter: Transformer
Source: Michel, Levy, Neubig 2019, "Are Sixteen Heads Really Better than One?" (NeurIPS), section 4, and its code
  (pmichel31415/fairseq, prune.py); Voita, Talbot, Moiseev, Sennrich, Titov 2019, "Analyzing Multi-Head Self-Attention"
  (ACL), section 6; exercise 11.5 of Dive into Deep Learning
Data: Multi30k English to German, as in `table3_directions`; `--data.path DIR` reads the published files
Command: python launch.py reproduce head_pruning
Cost: 61 minutes; a seed is a training of `table3_directions`, a third of one with gates, a pass over the training set,
  15 decodings of the validation set with a beam of 5, and 2 greedy ones of a test set

The base model of `table3_directions` has sixteen heads of 8 here instead of four of 32: 96 heads (encoder, decoder,
cross-attention: 2 layers of 16 each). A head's importance is estimated as in the authors' code: the sum over the
positions of all training sentences of |output . d loss / d output|, the absolute value taken at each position (equation
2), divided by the Euclidean norm over the heads of the layer. (Their script for WMT takes a directory named
newstest2009-13, on which the model was not trained; that for IWSLT the training sentences.) Heads are removed in this
order, ceil(96 i / 10) of them for i = 0 to 9, without any further training, and the validation set is decoded with a
beam of 5. The scripts of the paper leave the remaining heads as they are. The code has an option, off in these scripts,
that multiplies them by heads / remaining heads of their layer; up to three tenths are decoded that way, too. As a
control, a fifth and half of the heads are removed in random order.

Voita's gates train on: each head of the encoder has a random gate that is 0 with a learned probability, and the
expected number of open gates is a term of the loss. The model with the gates that are open at the end is decoded,
greedily, on test2016. A part of its change of BLEU is four more epochs of training; the control, the same epochs
without gates, was not run. The authors' code freezes the decoder meanwhile, here all parameters train. Its gates have a
temperature of 0.33 and begin half open, with log alpha within 0.61 of 0, and it trains until they settle, at Noam's
rates; here the temperature is 2/3 (Louizos et al. 2018), log alpha begins at 2 and moves 50 times as fast as the other
parameters, at a constant 5e-4.

Three seeds (1001 to 1003, AMD EPYC, 2026-11-24) have 33.9, 33.5 and 34.0 BLEU with all heads. A fifth of the heads
costs 1.1, 1.5 and 0.5, so the median seed can spare a tenth, and one of three a fifth. With the others
rescaled a fifth costs 27.2, 1.9 and 1.1, so rescaling does not help here. The importance does order the heads: without
half of them 25.3, 18.9 and 25.2 BLEU are left, and 13.8, 11.5 and 4.1 if they are chosen at random. The gates close 78,
78 and 81 % of the encoder's heads, and BLEU changes by 0.7, -0.2 and -0.2.

Until 2026-11-23 another estimator was used: the absolute value of the sum over a sentence, so that positions cancel,
over 1,000 validation sentences, with greedy decoding of test2016. Its only run, on an AMD EPYC, 2026-11-22, had 32.8
BLEU with all heads, 32.7 without a tenth and 31.1 without a fifth, so that it missed the paper's fifth. Three other
models were tried with it, and a fifth cost them as much: 1.3 BLEU with 8 heads of 32 in 3 layers
(`multi30k_deen_transformer`), 1.6 with six layers (144 heads of 16, pre-norm), 1.5 with 16 heads of 32. The gates
closed three quarters of the encoder's heads in that run, and BLEU was 0.5 higher.
"""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_jax.config import Config, Grid, Optim, replace
from experiments import table3_directions

SEEDS = 3
TENTHS = tuple(range(10))
RESCALED_TENTHS = (1, 2, 3)
RANDOM_TENTHS = (2, 5)
BEAM = {"decode.beam_size": 5, "decode.length_penalty": "simple", "decode.alpha": 1.0, "decode.batch_size": 100}
GATED_EPOCHS = 4
PRICE = 0.01
"""Nats a token that an open gate costs."""
HASTE = 50.0
"""Adam moves all parameters by similar steps; log alpha is this many times its parameter, as the training is short."""


def config() -> Config:
    return replace(table3_directions.config(), name="head_pruning", **{"model.num_heads": 16})


def smoke() -> Config:
    return replace(table3_directions.smoke(), name="head_pruning")


def heads(params) -> list[tuple[str, str, str]]:
    """The paths (stack, layer, name) of the attentions in the parameters."""
    paths = []
    for stack in ("encoder", "decoder"):
        for layer, modules in sorted(params[stack].items()):
            attentions = [name for name in ("attention", "cross_attention") if name in modules]
            if layer.startswith("layer"):
                paths += [(stack, layer, name) for name in attentions]
    return paths


def mask_heads(params, masks: dict):
    """`params` with every head's output times its entry in `masks` {path: [heads]}."""
    import jax

    params = jax.tree.map(lambda x: x, params)  # fresh dictionaries, the same arrays
    for (stack, layer, name), mask in masks.items():
        out = params[stack][layer][name]["out"]
        kernel = out["kernel"].reshape(len(mask), -1, out["kernel"].shape[-1])  # [heads, d_v, D]
        out["kernel"] = (kernel * mask[:, None, None]).reshape(out["kernel"].shape)
    return params


def with_masks(masks: dict):
    """A context in which every head's output is multiplied by `masks` {path: [B, T, heads]}, position by position."""
    import flax.linen as nn

    def multiply(call, args, kwargs, context):
        path = context.module.path
        if path[-1:] != ("out",) or path[:-1] not in masks or context.method_name != "__call__":
            return call(*args, **kwargs)
        [pooled], mask = args, masks[path[:-1]]  # [B, T, heads V]
        return call((pooled.reshape(*mask.shape, -1) * mask[..., None]).reshape(pooled.shape))

    return nn.intercept_methods(multiply)


def sensitivities(task, params, batch) -> dict:
    """{path: [B, heads]}: the sum over the positions of a sentence of |d loss / d mask|, for masks of 1.

    As a mask multiplies a head's output, this is |output . d loss / d output| at each position. The loss is the sum of
    the cross-entropy over the tokens; padding has no gradient.
    """
    import jax
    import jax.numpy as jnp

    from attention_jax.ops.losses import masked_cross_entropy
    from attention_jax.tasks.seq2seq import target_mask

    inputs = (batch["source"], batch["source_length"], batch["target"][:, :-1])
    shape = lambda stack: (*inputs[0 if stack == "encoder" else 2].shape, task.config.model.num_heads)

    def loss(masks):
        with with_masks(masks):
            logits, _ = task.model.apply({"params": params}, *inputs)
        return masked_cross_entropy(logits, batch["target"][:, 1:], target_mask(batch))[0]

    slopes = jax.grad(loss)({path: jnp.ones(shape(path[0])) for path in heads(params)})
    return jax.tree.map(lambda slope: jnp.abs(slope).sum(axis=1), slopes)


def importance(task, params) -> dict:
    """{path: [heads]}: `sensitivities` summed over the training set, divided by their norm in each layer."""
    import jax
    import numpy as np

    from attention_jax.train.placement import map_batches

    measure = lambda params, batch: sensitivities(task, params, batch)
    batch_sums = [map_batches(measure, params, bucket, 128) for bucket in task.buckets]
    total = jax.tree.map(lambda *rows: sum(np.sum(row, axis=0, dtype=np.float64) for row in rows), *batch_sums)
    return {path: x / np.linalg.norm(x) for path, x in total.items()}


def remaining(paths, count: int, removed, rescale: bool = False) -> dict:
    """Masks {path: [count]}: 0 for the `removed` (path, head), 1 for the other n, or count / n with `rescale`."""
    import numpy as np

    masks = {path: np.ones(count, np.float32) for path in paths}
    for path, head in removed:
        masks[path][head] = 0.0
    return {path: mask * (count / max(mask.sum(), 1.0)) for path, mask in masks.items()} if rescale else masks


def harmless(bleu: dict[int, float]) -> float:
    """The share of heads up to which at most 1 BLEU is lost, from {tenths removed: BLEU}.

    >>> harmless({0: 30.0, 1: 29.5, 2: 28.0, 3: 29.9})
    0.1
    """
    return max(itertools.takewhile(lambda tenths: bleu[tenths] >= bleu[0] - 1.0, sorted(bleu))) / 10


def log_alphas(params) -> dict:
    """Voita's log alpha {layer: [heads]} of the gates among the parameters."""
    return {layer: HASTE * x for layer, x in params["gates"].items()}


@dataclass(frozen=True, eq=False)
class GatedTask:
    """A translation task whose parameters have a gate for each head of the encoder beside them."""

    task: Any

    def __getattr__(self, name):
        return getattr(self.task, name)

    def init(self, rng):
        import jax.numpy as jnp

        params = self.task.init(rng)
        layers = [layer for stack, layer, _ in heads(params) if stack == "encoder"]
        gates = {layer: jnp.full(self.config.model.num_heads, 2.0 / HASTE) for layer in layers}
        return {"model": params, "gates": gates}

    def gate_params(self, params, gates):
        """The model's parameters with these gates {layer: [heads]} in place."""
        return mask_heads(params["model"], {("encoder", layer, "attention"): gate for layer, gate in gates.items()})

    def loss(self, params, batch, rng):
        """The task's loss with sampled gates, and what the open ones cost (Voita's equation in section 6.1)."""
        import jax

        from experiments.papers.gates import draw_gates, open_probability

        rng, *rngs = jax.random.split(rng, len(params["gates"]) + 1)
        log_alpha = log_alphas(params)
        gates = {layer: draw_gates(key, x) for key, (layer, x) in zip(rngs, log_alpha.items(), strict=True)}
        total, count, aux = self.task.loss(self.gate_params(params, gates), batch, rng)
        return total + PRICE * count * sum(open_probability(x).sum() for x in log_alpha.values()), count, aux

    def final_gates(self, params) -> dict:
        """The gates {layer: [heads]} that training ends with."""
        from experiments.papers.gates import evaluation_gates

        return {layer: evaluation_gates(x) for layer, x in log_alphas(params).items()}

    def evaluate(self, params, full: bool):
        return self.task.evaluate(self.gate_params(params, self.final_gates(params)), full)


def with_gates(task, trained, directory):
    """Train on with gates: the share of the encoder's heads that are closed then, and the parameters without them."""
    import numpy as np

    from attention_jax.train.loop import train_one

    gated, train = GatedTask(task), replace(task.config.train, total_epochs=GATED_EPOCHS, average_last=0)
    begin = lambda params: params | {"model": trained}
    _, params = train_one(gated, Optim(learning_rate=5e-4), train, directory, begin=begin)
    gates = gated.final_gates(params)
    return float(np.mean([np.asarray(gate) == 0.0 for gate in gates.values()])), gated.gate_params(params, gates)


def order_of(ranked: dict) -> list:
    """All (path, head), the least important first."""
    entries = [(path, head) for path in ranked for head in range(len(ranked[path]))]
    return sorted(entries, key=lambda entry: ranked[entry[0]][entry[1]])


def bleu_on(task, split: str, **options):
    """A function from parameters to the BLEU of what they write for a split, decoded with these options."""
    import dataclasses

    data = task.data._replace(held_out={split: task.data.held_out[split]})
    decoding = dataclasses.replace(task, data=data, config=replace(task.config, **options))
    return lambda params: decoding.evaluate(params, True).metrics[f"{split}.bleu"]


def study(config: Config, directory) -> dict:
    """Train, rank the heads, remove more and more of them, decode; train on with gates, decode."""
    import numpy as np

    from attention_jax import tasks
    from attention_jax.train.loop import train_one

    task = tasks.build(config)
    _, params = train_one(task, config.optim, config.train, directory)
    ranked = order_of(importance(task, params))
    at_random = [ranked[i] for i in np.random.default_rng(config.train.seed).permutation(len(ranked))]
    valid, test = bleu_on(task, "valid", **BEAM), bleu_on(task, "test")

    def curve(order, tenths, rescale=False) -> dict[int, float]:
        """{tenths of the heads removed: BLEU}"""
        removed = {i: order[: math.ceil(len(order) * i / 10)] for i in tenths}
        masks = lambda i: remaining(heads(params), config.model.num_heads, removed[i], rescale)
        return {i: valid(mask_heads(params, masks(i))) for i in tenths}

    pruned = curve(ranked, TENTHS)
    rescaled = {0: pruned[0]} | curve(ranked, RESCALED_TENTHS, rescale=True)
    control = {0: pruned[0]} | curve(at_random, RANDOM_TENTHS)
    metrics = {f"valid.bleu.{i / 10:.0%}": bleu for i, bleu in pruned.items()}
    metrics |= {f"valid.bleu_rescaled.{i / 10:.0%}": bleu for i, bleu in rescaled.items()}
    metrics |= {f"valid.bleu_random.{i / 10:.0%}": bleu for i, bleu in control.items()}
    metrics |= {"harmless_share": harmless(pruned), "harmless_share_rescaled": harmless(rescaled)}
    metrics["half.over_random"] = pruned[5] - control[5]
    closed, gated = with_gates(task, params, directory / "gates")
    return metrics | {"gates.share": closed, "gates.change": test(gated) - test(params)}


def figure(recorded: dict[str, list[dict]], path: Path) -> Path:
    """BLEU of the recorded seeds while more and more heads are removed, in both orders."""
    from attention_jax.report.curves import lines

    runs = [run["metrics"] for run in recorded[""] if "valid.bleu.0%" in run["metrics"]]
    curves = {"least important heads first": ("bleu", TENTHS), "heads at random": ("bleu_random", (0, *RANDOM_TENTHS))}
    series = {
        label: ([10 * i for i in tenths], [[run[f"valid.{metric}.{i / 10:.0%}"] for i in tenths] for run in runs])
        for label, (metric, tenths) in curves.items()
    }
    return lines(series, path, xlabel="attention heads removed (%)", ylabel="validation BLEU", inputs=series)


def columns(prefix: str, tenths) -> dict[str, str]:
    """A column for each share of the heads removed."""
    return {f"{i / 10:.0%}": f"{prefix}.{i / 10:.0%}" for i in tenths}


GRIDS = (
    Grid(
        "Share of heads that can go for at most 1 BLEU; share of the encoder's that gates close",
        {
            "share": "harmless_share",
            "the others rescaled": "harmless_share_rescaled",
            "gates close": "gates.share",
            "change of BLEU": "gates.change",
        },
        ("",),
    ),
    Grid("Validation BLEU, least important heads removed", columns("valid.bleu", TENTHS), ("",)),
    Grid("Validation BLEU, the others rescaled", columns("valid.bleu_rescaled", (0, *RESCALED_TENTHS)), ("",)),
    Grid("Validation BLEU, heads removed at random", columns("valid.bleu_random", (0, *RANDOM_TENTHS)), ("",)),
    Grid("The earlier estimator, greedy on test2016", columns("bleu", TENTHS), ("",)),
    Grid("The earlier run, heads removed at random", columns("random", (1, 2, 3, 5, 7)), ("",)),
)
