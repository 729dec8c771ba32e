"""Most heads of a trained Transformer can go: BLEU against the share of attention heads removed.

Chapter: Transformer
Source: Michel, Levy, Neubig 2019, "Are Sixteen Heads Really Better than One?" (NeurIPS), section 4; Voita, Talbot,
  Moiseev, Sennrich, Titov 2019, "Analyzing Multi-Head Self-Attention" (ACL), section 6; exercise 11.5 of Dive into
  Deep Learning
Data: Multi30k English to German, as in `table3_directions`; `--data.path DIR` reads the published files
Command: python launch.py reproduce head_pruning
Cost: 33 minutes on one CPU core, other work beside it: a training of `table3_directions`, a third of one with gates, 17
  decodings of a test set. One seed

The base model of `table3_directions` with sixteen heads of 8 instead of four of 32: 96 heads (encoder, decoder,
cross-attention: 2 layers of 16 each). A head's importance is the mean over validation sentences of |d loss / d mask|
with the head's output times a mask of 1 (Michel's equation 2), normalised over the heads of its layer; as the mask
scales rows of W_o, it needs no change of the model. Heads go in order of importance, all at once and without any
further training; the control removes them in random order.

Voita's gates train on: each head of the encoder has a random gate that is 0 with a learnt probability, and the
expected number of open gates is a term of the loss. What is left open at the end is decoded.

What we found, AMD EPYC, 2026-11-22: a tenth of the heads can go unnoticed (32.8 and 32.7 BLEU), a fifth costs 1.7,
which misses the paper's fifth. Three other models were tried, and a fifth costs them as much: 1.3 with 8 heads of 32
in 3 layers (`multi30k_deen_transformer`: 35.9, 34.6); 1.6 with six layers as the paper's, 144 heads of 16 in pre-norm
(33.8, 32.2); 1.5 with four times as wide heads as there is room for, 16 of 32 (35.0, 33.5; the last two read off their
figures). So neither the number of layers nor of heads is the cause; the length of training and the corpus remain, 12
passes over 29,000 captions where theirs are of millions of sentences. In order of importance it is far better than at
random. And the heads are there to spare if training may move what they do: the gates close three quarters of the
encoder's heads, and BLEU is 0.5 higher. Part of that is longer training; the same four epochs without gates were not
run.
"""

from dataclasses import dataclass
from typing import Any

from attention_jax.config import Claim, Config, Optim, replace
from experiments import table3_directions

SOURCE = "Michel et al. 2019, section 4.2: up to 20 % (WMT) or 40 % (BERT) of heads"
GATES = "Voita et al. 2019, abstract: 38 of 48 heads of the encoder for 0.15 BLEU (WMT English-Russian)"
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
RANDOM_SHARES = (0.1, 0.2, 0.3, 0.5, 0.7)
GATED_EPOCHS = 4
PRICE = 0.01
"""Nats a token that an open gate costs."""
HASTE = 50.0
"""Adam moves all parameters equally far; log alpha is this many times its parameter, as the training is short."""


def config() -> Config:
    return replace(table3_directions.config(), name="head_pruning", **{"model.heads": 16})


def smoke() -> Config:
    return replace(table3_directions.smoke(), name="head_pruning")


def heads(params) -> list[tuple[str, str, str]]:
    """Where the attentions are in the parameters: (stack, layer, name)."""
    places = []
    for stack in ("encoder", "decoder"):
        for layer, modules in sorted(params[stack].items()):
            attentions = [name for name in ("attention", "cross_attention") if name in modules]
            if layer.startswith("layer"):
                places += [(stack, layer, name) for name in attentions]
    return places


def masked(params, masks: dict):
    """`params` with every head's output times its entry in `masks` {path: [heads]}."""
    import jax

    params = jax.tree.map(lambda x: x, params)  # fresh dictionaries, the same arrays
    for (stack, layer, name), mask in masks.items():
        out = params[stack][layer][name]["out"]
        kernel = out["kernel"].reshape(len(mask), -1, out["kernel"].shape[-1])  # [heads, d_v, D]
        out["kernel"] = (kernel * mask[:, None, None]).reshape(out["kernel"].shape)
    return params


def importance(task, params, examples: int = 1000) -> dict:
    """{path: [heads]}: how much the loss of a sentence depends on each head, on average, normalised per layer."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from attention_jax.ops.losses import masked_cross_entropy
    from attention_jax.tasks.seq2seq import target_mask

    ones = {path: jnp.ones(task.config.model.heads) for path in heads(params)}

    def loss(masks, row):
        row = {name: x[None] for name, x in row.items()}
        logits, _ = task.model.apply(
            {"params": masked(params, masks)}, row["source"], row["source_length"], row["target"][:, :-1]
        )
        total, count = masked_cross_entropy(logits, row["target"][:, 1:], target_mask(row))
        return total / count

    slopes = jax.jit(
        lambda rows: jax.tree.map(jnp.abs, jax.lax.map(lambda row: jax.grad(loss)(ones, row), rows, batch_size=16))
    )
    rows = {name: x[:examples] for name, x in task.data.held_out["valid"]._asdict().items()}
    mean = jax.tree.map(lambda x: np.asarray(x.mean(axis=0)), slopes(rows))
    return {path: x / np.linalg.norm(x) for path, x in mean.items()}


def log_alphas(params) -> dict:
    """Voita's log alpha {layer: [heads]} of the gates among the parameters."""
    return {layer: HASTE * x for layer, x in params["gates"].items()}


@dataclass(frozen=True, eq=False)
class Gated:
    """A translation task whose parameters have a gate for each head of the encoder beside them."""

    task: Any

    def __getattr__(self, name):
        return getattr(self.task, name)

    def init(self, rng):
        import jax.numpy as jnp

        params = self.task.init(rng)
        layers = [layer for stack, layer, _ in heads(params) if stack == "encoder"]
        gates = {layer: jnp.full(self.config.model.heads, 2.0 / HASTE) for layer in layers}
        return {"model": params, "gates": gates}

    def gated(self, params, gates):
        """The model's parameters with these gates {layer: [heads]} in place."""
        return masked(params["model"], {("encoder", layer, "attention"): gate for layer, gate in gates.items()})

    def loss(self, params, batch, rng):
        """The task's loss with gates drawn, and what the open ones cost (Voita's equation in section 6.1)."""
        import jax

        from attention_jax.ops.gates import draw_gates, open_probability

        rng, *rngs = jax.random.split(rng, len(params["gates"]) + 1)
        log_alpha = log_alphas(params)
        gates = {layer: draw_gates(key, x) for key, (layer, x) in zip(rngs, log_alpha.items(), strict=True)}
        total, count, found = self.task.loss(self.gated(params, gates), batch, rng)
        return total + PRICE * count * sum(open_probability(x).sum() for x in log_alpha.values()), count, found

    def settled(self, params) -> dict:
        """The gates {layer: [heads]} that training ends with."""
        from attention_jax.ops.gates import settled_gates

        return {layer: settled_gates(x) for layer, x in log_alphas(params).items()}

    def evaluate(self, params, full: bool):
        return self.task.evaluate(self.gated(params, self.settled(params)), full)


def with_gates(task, trained, directory):
    """Train on with gates: the share of the encoder's heads that are closed then, and the parameters without them."""
    import numpy as np

    from attention_jax.train.loop import train_one

    gated, train = Gated(task), replace(task.config.train, total_epochs=GATED_EPOCHS, average_last=0)
    begin = lambda params: params | {"model": trained}
    _, params = train_one(gated, Optim(learning_rate=5e-4), train, directory, begin=begin)
    gates = gated.settled(params)
    return float(np.mean([np.asarray(gate) == 0.0 for gate in gates.values()])), gated.gated(params, gates)


def study(config: Config, directory) -> dict:
    """Train, rank the heads, remove more and more of them, decode; train on with gates, decode."""
    import dataclasses

    import numpy as np

    from attention_jax import tasks
    from attention_jax.report.figures import lines
    from attention_jax.train.loop import train_one

    task = tasks.build(config)
    _, params = train_one(task, config.optim, config.train, directory)
    ranked = importance(task, params)
    entries = [(path, head) for path in ranked for head in range(config.model.heads)]
    by_importance = sorted(entries, key=lambda entry: ranked[entry[0]][entry[1]])
    at_random = [entries[i] for i in np.random.default_rng(config.train.seed).permutation(len(entries))]
    tested = dataclasses.replace(task, data=task.data._replace(held_out={"test": task.data.held_out["test"]}))

    def bleu(params) -> float:
        return tested.evaluate(params, True).metrics["test.bleu"]

    def without(order, share: float):
        """`params` less the first heads of `order`."""
        masks = {path: np.ones(config.model.heads, np.float32) for path in ranked}
        for path, head in order[: round(share * len(order))]:
            masks[path][head] = 0.0
        return masked(params, masks)

    ours = {share: bleu(without(by_importance, share)) for share in SHARES}
    control = {0.0: ours[0.0]} | {share: bleu(without(at_random, share)) for share in RANDOM_SHARES}
    curves = {
        "least important first": (list(ours), list(ours.values())),
        "at random": (list(control), list(control.values())),
    }
    lines(curves, directory / "figures" / "pruning.png", xlabel="share of heads removed", ylabel="BLEU on test2016")
    harmless = [share for share in SHARES if all(ours[s] >= ours[0.0] - 1.0 for s in SHARES if s <= share)]
    metrics = {f"bleu.{share:.0%}": value for share, value in ours.items()}
    metrics |= {f"random.{share:.0%}": value for share, value in control.items()}
    closed, gated = with_gates(task, params, directory / "gates")
    found = {"prunable_share": max(harmless), "gates.share": closed, "gates.change": bleu(gated) - ours[0.0]}
    return metrics | found


CLAIMS = (
    Claim("share of heads that can go for at most 1 BLEU", "prunable_share", 0.2, SOURCE, at_least=0.2, beaten=0.4),
    Claim("BLEU with half of the heads", "bleu.50%", None, "no published number for this model"),
    Claim("BLEU with half of the heads, removed at random", "random.50%", None, "control"),
    Claim("gates: share of the encoder's heads that they close", "gates.share", 0.79, GATES, at_least=0.6),
    Claim("gates: change of BLEU", "gates.change", -0.15, GATES, at_least=-1.0),
)
