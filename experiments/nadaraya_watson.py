"""Kernel regression is attention: estimates and attention maps of four kernels, and the error's fall with more data.

Chapter: kernels
Source: Nadaraya 1964, Watson 1964; Dive into Deep Learning 11.2; rate of convergence: Stone 1982
Data: y = 2 sin x + x + noise of variance 1 at x uniform on [0, 5], 40 points, generated
Command: python launch.py reproduce nadaraya_watson
Cost: 0.1 minutes

Consistency: mean squared error inside the interval ([1, 4], away from the edges) against n = 50 ... 6,400 with a
Gaussian of width 0.6 n^(-1/5), mean over 200 data sets; theory: n^(-4/5). That a constant kernel gives the mean and
that a query without neighbors gives 0 are tests, not claims; the study measures both.
"""

from pathlib import Path

import numpy as np

from attention_jax.config import Config, replace
from attention_jax.errors import InputError
from experiments.papers.options import Regression

SIZES = (50, 100, 200, 400, 800, 1600, 3200, 6400)
WIDTHS = (0.1, 0.2, 0.5, 1.0)


def config() -> Config:
    return Config("nadaraya_watson", Regression(), None)


def smoke() -> Config:
    return replace(config(), **{"data.repetitions": 8})


def curve(x):
    return 2 * np.sin(x) + x


def sample(rng: np.random.Generator, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs in order, [n, 1], and their noisy outputs, [n, 1]."""
    x = np.sort(rng.uniform(0, 5, (points, 1)), axis=0).astype(np.float32)
    return x, (curve(x) + rng.normal(size=x.shape)).astype(np.float32)


def scores() -> dict:
    from attention_jax.ops.scores import Boxcar, Constant, Gaussian, Triangular

    return {"Gaussian": Gaussian(), "Boxcar": Boxcar(), "Constant": Constant(), "Triangular": Triangular()}


def consistency(repetitions: int) -> np.ndarray:
    """Mean squared error at each of SIZES."""
    import jax
    import jax.numpy as jnp

    from attention_jax.ops.kernel_regression import nadaraya_watson
    from attention_jax.ops.scores import Gaussian

    query = np.linspace(1, 4, 31, dtype=np.float32)[:, None]
    rng, errors = np.random.default_rng(0), []
    for n in SIZES:
        fit = jax.jit(
            lambda x, y, n=n: jnp.mean(
                (nadaraya_watson(jnp.asarray(query), x, y, Gaussian(0.6 * n**-0.2)) - curve(query)) ** 2
            )
        )
        errors.append(np.mean([float(fit(*sample(rng, n))) for _ in range(repetitions)]))
    return np.array(errors)


def classification(rng: np.random.Generator) -> float:
    """Accuracy at 1,000 new points: which of two interleaved half moons? One-hot values, inputs of two dimensions."""
    import jax.numpy as jnp

    from attention_jax.ops.kernel_regression import nadaraya_watson
    from attention_jax.ops.scores import Gaussian

    def moons(n):
        label, angle = rng.integers(0, 2, n), rng.uniform(0, np.pi, n)
        x = np.where(
            label[:, None],
            np.stack([1 - np.cos(angle), 0.5 - np.sin(angle)], 1),
            np.stack([np.cos(angle), np.sin(angle)], 1),
        )
        return (x + 0.15 * rng.normal(size=x.shape)).astype(np.float32), label

    (x, label), (query, labels) = moons(200), moons(1_000)
    votes = nadaraya_watson(
        jnp.asarray(query), jnp.asarray(x), jnp.asarray(np.eye(2, dtype=np.float32)[label]), Gaussian(0.2)
    )
    return float(np.mean(np.asarray(votes).argmax(1) == labels))


def attention_maps(config: Config, texts: list[str]):
    """What each query weighs, for `launch.py look`: of a grid of queries, or of the numbers that `texts` are."""
    import jax.numpy as jnp

    from attention_jax.ops.attention import attention_weights
    from attention_jax.ops.scores import Gaussian
    from attention_jax.report.attention_data import Attention, AttentionRecord, Axis, Prediction

    try:
        at = sorted(map(float, texts)) or np.arange(0, 5, 0.1)
    except ValueError as error:
        raise InputError(f"a query of a kernel regression is a number, such as 2.5 ({error})") from None
    x, y = sample(np.random.default_rng(config.train.seed), config.data.points)
    if not np.isfinite(at).all():
        raise InputError(f"a query of a kernel regression is a finite number, such as 2.5; got {', '.join(texts)}")
    query = np.asarray(at, np.float32)[:, None]
    queries = Axis(tuple(f"{value:.4g}" for value in at), points=query)
    points = Axis(tuple(f"({a:.2f}, {b:.2f})" for (a,), (b,) in zip(x, y)), points=x)
    by_width = {f"width {width}": Gaussian(width) for width in WIDTHS}
    answers = []
    for text, named_scores in (("four kernels", scores()), ("a Gaussian of four widths", by_width)):
        weights = [
            attention_weights(jnp.asarray(query), jnp.asarray(x), score=score) for score in named_scores.values()
        ]
        kernels = np.stack(list(map(np.asarray, weights)))[None]
        answers.append(
            Prediction(text, (Attention("kernel", kernels, queries, points, tuple(named_scores), values=y[:, 0]),))
        )
    return (AttentionRecord(f"{len(x)} points of 2 sin x + x with noise", tuple(answers)),)


def study(config: Config, directory: Path) -> dict:
    import jax.numpy as jnp

    from attention_jax.ops import kernel_regression as nw
    from attention_jax.ops.attention import attention_weights
    from attention_jax.ops.scores import Boxcar, Gaussian
    from attention_jax.report.attention_page import page
    from attention_jax.report.curves import lines
    from attention_jax.report.heatmaps import Heatmap, show_heatmaps

    rng, figures = np.random.default_rng(config.train.seed), directory / "figures"
    x, y = map(jnp.asarray, sample(rng, config.data.points))
    query = jnp.arange(0, 5, 0.1)[:, None]
    truth, at = curve(np.asarray(query)), np.asarray(query)[:, 0]
    estimates = {name: np.asarray(nw.nadaraya_watson(query, x, y, score)) for name, score in scores().items()}
    by_width = {f"width {width}": np.asarray(nw.nadaraya_watson(query, x, y, Gaussian(width))) for width in WIDTHS}
    learned, rule = nw.learn_width(x, y), nw.silverman_width(x)
    by_width[f"learned width {learned:.2f}"] = np.asarray(nw.nadaraya_watson(query, x, y, Gaussian(learned)))
    by_width["width per query"] = np.asarray(nw.nadaraya_watson(query, x, y, Gaussian(nw.local_widths(query, x, rule))))
    for name, series in (("kernels", estimates), ("widths", by_width)):
        curves = {key: (at, value[:, 0]) for key, value in series.items()} | {"2 sin x + x": (at, truth[:, 0])}
        lines(curves, figures / f"{name}.png", xlabel="x", ylabel="y", points={"data": (x[:, 0], y[:, 0])})
    for name, named_scores in (
        ("attention", scores()),
        ("attention_widths", {f"width {width}": Gaussian(width) for width in WIDTHS}),
    ):
        maps = [Heatmap(attention_weights(query, x, score=score), title=title) for title, score in named_scores.items()]
        show_heatmaps([maps], figures / f"{name}.png", xlabel="data points, in order")

    page(attention_maps(config, []), config.name).save(figures / "look.html")

    errors = consistency(config.data.repetitions)
    slope, _ = np.polyfit(np.log(SIZES), np.log(errors), 1)
    height = np.mean(np.log(errors) + 0.8 * np.log(SIZES))
    theory = {"theory: n^-0.8": (SIZES, np.exp(height) * np.array(SIZES) ** -0.8)}
    measured = {f"measured, fitted n^{slope:.2f}": (SIZES, errors)}
    axes = {"xlabel": "data points n", "ylabel": "mean squared error", "log": "xy"}
    lines(theory, figures / "consistency.png", points=measured, **axes)

    wide = jnp.arange(-2, 7, 0.25)[:, None]
    alone = np.asarray(nw.count_neighbors(wide, x, Boxcar(0.5)) == 0)
    outside = np.asarray(nw.nadaraya_watson(wide, x, y, Boxcar(0.5)))
    error = lambda estimate: float(np.mean((estimate - truth) ** 2))
    recorded = {"Triangular": "epanechikov"}  # d2l's name
    metrics = {f"error.{recorded.get(name, name.lower())}": error(value) for name, value in estimates.items()}
    metrics |= {f"error.width_{width}": error(by_width[f"width {width}"]) for width in WIDTHS}
    return metrics | {
        "error.learned_width": error(by_width[f"learned width {learned:.2f}"]),
        "error.width_per_query": error(by_width["width per query"]),
        "learned_width": float(learned),
        "silverman_width": float(rule),
        "constant.deviation_from_mean": float(np.abs(estimates["Constant"] - np.mean(np.asarray(y, np.float64))).max()),
        "boxcar.queries_without_neighbour": int(alone.sum()),
        "boxcar.largest_estimate_without_neighbour": float(np.abs(outside[alone]).max()),
        "boxcar.nan": int(np.isnan(outside).sum()),
        "classification.accuracy": classification(rng),
        "consistency.exponent": float(slope),
    }
