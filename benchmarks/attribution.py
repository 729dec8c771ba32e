"""`python launch.py bench attribution --file smollm2.gguf`: attribution patching against exact patching, of all heads.

Two prompts differ in one name, and the measure is the difference of the logits of the two names. The effects
of patching each head's output, queries and keys from one prompt into the other are computed exactly by `patch_sweep`
and estimated by `attribution_patch`; edges to the output exactly by adding what a head writes to the last residual
stream. Correlations are over all heads and pairs of prompts, and by layer in the figure.
"""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import interpret, load_pretrained
from attention_jax.report import style
from attention_jax.report.tables import Table, show

PROMPT, NAMES = "When {} and {} went to the {}, {} gave a {} to", ("Mary", "John")
PROMPTS = (("Mary", "John", "store", "drink"), ("John", "Mary", "park", "ball"), ("Mary", "John", "school", "book"))
METHODS = {
    "outputs, gradient at the prompt": ("head_output", {}),
    "outputs, integrated, 5 steps": ("head_output", {"steps": 5}),
    "outputs, |effect|, layers dropped": ("head_output", {"drop_layers": True}),
    "queries, gradient at the prompt": ("query", {}),
    "queries, exact softmax": ("query", {"fix_qk": True}),
    "keys, gradient at the prompt": ("key", {}),
    "keys, exact softmax": ("key", {"fix_qk": True}),
}
SITES = ["*.head_output", "*.query", "*.key", "*.embedding"]


def effects_of(lm, measure, words: tuple[str, ...]) -> tuple[dict, dict]:
    """({kind: exact effects [layers, heads]}, {method: estimates}), and their processor seconds under "seconds"."""
    first, second, place, gift = words
    encode = lambda giver: jnp.asarray([lm.tokenizer.encode(PROMPT.format(first, second, place, giver, gift))])
    inputs, other = encode(first), encode(second)
    call = {"measure": measure, "source": interpret.trace(lm.model, lm.params, other, sites=SITES)}
    base, exact, estimates, seconds = measure(interpret.run(lm.model, lm.params, inputs)[0]), {}, {}, {}
    stack = lambda values: np.stack([np.asarray(x) for x in values.values()])
    for kind in ("head_output", "query", "key"):
        start = time.process_time()
        exact[kind] = stack(interpret.patch_sweep(lm.model, lm.params, inputs, **call, sites=f"*.{kind}")) - float(base)
        seconds[kind] = time.process_time() - start
    for name, (kind, options) in METHODS.items():
        start = time.process_time()
        estimates[name] = stack(
            interpret.attribution_patch(lm.model, lm.params, inputs, **call, sites=f"*.{kind}", **options)
        )
        seconds[name] = time.process_time() - start
    edges = stack(interpret.attribution_patch(lm.model, lm.params, inputs, **call, edges=True))[..., -1]
    exact["edge"], estimates["outputs, edges to the output"] = exact_edges(lm, inputs, call) - float(base), edges
    return exact | {"seconds": seconds}, estimates


def exact_edges(lm, inputs, call) -> np.ndarray:
    """The measure with what one head writes to the last residual stream as in the other prompt, [layers, heads]."""
    activations = interpret.trace(lm.model, lm.params, inputs, sites="*.head_output")
    written = []  # of each layer [H, B, T, D], in all [L H, B, T, D]
    for site, x in activations.items():
        output = interpret.head_weights(lm.model, lm.params, site.rpartition(".")[0]).output  # [H, V, D]
        written.append(jnp.einsum("bthv,hvd->hbtd", call["source"][site] - x, output))
    end = "decoder.residual_out"
    run = lambda x: call["measure"](
        interpret.run(lm.model, lm.params, inputs, set={end: interpret.Part(x, adds=True)})[0]
    )
    return np.asarray(jax.lax.map(run, jnp.concatenate(written))).reshape(len(written), -1)


def correlation(x, y) -> float:
    """Pearson's r, NaN where one of them is constant."""
    x, y = np.ravel(x) - np.mean(x), np.ravel(y) - np.mean(y)
    size = np.sqrt((x**2).sum() * (y**2).sum())
    return float((x * y).sum() / size) if size else float("nan")


def main(file: str, out: str = "attribution.png") -> dict:
    """Print the correlations, draw the figure, and return {method: {"r": ..., "layers": [...]}}.

    Args:
        file: A .gguf file or a directory of a language model whose names are single tokens, such as SmolLM2.
        out: The figure: estimates against exact effects, and the correlation of each layer.
    """
    lm = load_pretrained(file)
    ids = [lm.tokenizer.encode(f" {name}")[-1] for name in NAMES]
    measure = lambda logits: logits[0, -1, ids[0]] - logits[0, -1, ids[1]]
    results = [effects_of(lm, measure, words) for words in PROMPTS]
    kinds = {name: kind for name, (kind, _) in METHODS.items()} | {"outputs, edges to the output": "edge"}
    exact = {kind: np.stack([result[0][kind] for result in results], 1) for kind in {*kinds.values()}}  # [L, pairs, H]
    estimates = {name: np.stack([result[1][name] for result in results], 1) for name in kinds}
    target = lambda name: np.abs(exact[kinds[name]]) if "|effect|" in name else exact[kinds[name]]
    times = [result[0]["seconds"] for result in results[1:]]  # the first one compiles
    mean_time = lambda key: f"{np.mean([seconds[key] for seconds in times]):.1f}" if key in times[0] else "-"
    top = lambda x: {*np.argsort(-np.abs(x).mean(1).ravel())[:10].tolist()}
    lines, rows = {}, []
    for name, estimate in estimates.items():
        truth = target(name)
        layers = [correlation(estimate[i], truth[i]) for i in range(len(truth))]
        lines[name] = {"r": correlation(estimate, truth), "layers": layers}
        error = float(np.abs(estimate - truth).mean() / np.abs(truth).mean())
        cells = (f"{lines[name]['r']:.3f}", f"{np.nanmedian(layers):.3f}", f"{np.nanmin(layers):.3f}", f"{error:.2f}")
        rows.append((name, *cells, f"{len(top(estimate) & top(truth))}", mean_time(name), mean_time(kinds[name])))
    columns = ("estimate", "r", "median layer", "worst layer", "error", "top 10", "CPU-s", "exact CPU-s")
    show(Table("", columns, rows, right=columns[1:]))
    print(draw(exact, estimates, kinds, lines, out))
    return lines


def draw(exact, estimates, kinds, lines, path: str) -> Path:
    """Scatter plots of three estimates, and the correlation by layer."""
    canvas = style.canvas(style.WIDTH, 4.6)
    with style.figure_style():
        *dots, by_layer = canvas.subplots(2, 2).ravel()
        pair = lambda kind, end: [f"{kind}, gradient at the prompt", f"{kind}, {end}"]
        panels = pair("outputs", "integrated, 5 steps"), pair("queries", "exact softmax"), pair("keys", "exact softmax")
        for axes, names in zip(dots, panels, strict=True):
            for i, name in enumerate(names):
                x, y = exact[kinds[name]].ravel(), estimates[name].ravel()
                label = f"{name.partition(', ')[2]}, r = {lines[name]['r']:.2f}"
                axes.plot(x, y, "o", color=style.color(i), markersize=2.5, alpha=0.6, markeredgewidth=0, label=label)
            ends = [min(axes.get_xlim()[0], axes.get_ylim()[0]), max(axes.get_xlim()[1], axes.get_ylim()[1])]
            axes.plot(ends, ends, color=style.INK, linewidth=0.5)
            axes.set(xlabel="exact effect (logits)", ylabel="estimate", title=names[0].partition(",")[0])
            axes.legend(loc="upper left")
        for i, name in enumerate(name for name in lines if "|" not in name and "edges" not in name):
            by_layer.plot(lines[name]["layers"], style.DASHES[i % 4], color=style.color(i), label=name, linewidth=1)
        by_layer.set(xlabel="layer", ylabel="r of its heads", title="correlation by layer", ylim=(-0.6, 1.05))
        canvas.legend(*by_layer.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return style.save(canvas, path)
