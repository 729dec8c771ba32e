"""Why post-norm needs a warm-up: the gradient of the last feed-forward layer at initialization, against depth.

Chapter: Transformer
Source: Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture" (ICML), theorem 1 and figure 3
Data: random tokens
Command: python launch.py reproduce norm_placement
Cost: 0.72 minutes

Theorem 1: the norm of the last feed-forward layer's gradient is O(d sqrt(ln d)) in post-norm, whatever the depth L,
and O(d sqrt(ln d / L)) in pre-norm. It is measured on decoder-only models of 4 to 32 layers with Glorot initialization
and no dropout, as the mean over 4 random initializations and batches of tokens. The slope is that of the line fitted to
log(norm) against log(L): the theorem says 0 and -1/2 (approached from above, as the embeddings' share of the residual
stream shrinks with depth). As in the theorem the feed-forward layer has the model's width.
"""

from attention_jax.config import Config, Grid, LanguageModelConfig, replace

DEPTHS = (4, 8, 16, 32)
DRAWS, BATCH, LENGTH, VOCABULARY = 4, 8, 16, 64


def config() -> Config:
    model = LanguageModelConfig(
        hidden_size=64,
        num_heads=1,
        mlp_dim=64,
        activation="relu",
        position_embedding="sinusoidal",
        dropout=0.0,
        attention_dropout=0.0,
        tied_embeddings=False,
    )
    return Config("norm_placement", None, model)


def smoke() -> Config:
    return replace(config(), **{"model.hidden_size": 8, "model.mlp_dim": 8})


def gradient_norm(model: LanguageModelConfig, depth: int) -> float:
    """Frobenius norm of the loss's gradient with respect to the last layer's second feed-forward kernel."""
    import jax
    import jax.numpy as jnp

    from attention_jax.models import language_model
    from attention_jax.ops.losses import masked_cross_entropy

    module = language_model.LanguageModel(replace(model, num_layers=depth), VOCABULARY)

    @jax.jit
    def norm_of_draw(rng):
        for_params, for_tokens = jax.random.split(rng)
        tokens = jax.random.randint(for_tokens, (BATCH, LENGTH + 1), 0, VOCABULARY)
        params = module.init(for_params, tokens[:, :-1])

        def loss(params):
            total, count = masked_cross_entropy(
                module.apply(params, tokens[:, :-1])[0], tokens[:, 1:], jnp.ones((BATCH, LENGTH))
            )
            return total / count

        last = jax.grad(loss)(params)["params"]["decoder"][f"layer_{depth - 1}"]
        return jnp.linalg.norm(last["ffn"]["out"]["kernel"])

    return float(sum(norm_of_draw(jax.random.key(seed)) for seed in range(DRAWS)) / DRAWS)


def study(config: Config, directory) -> dict:
    """Norms of both placements at every depth, and their slopes in log-log."""
    import numpy as np

    from attention_jax.report.curves import lines

    metrics, curves = {}, {}
    for placement in ("post", "pre"):
        curves[placement] = [gradient_norm(replace(config.model, norm=placement), depth) for depth in DEPTHS]
        metrics |= {f"{placement}.norm_at_{depth}": norm for depth, norm in zip(DEPTHS, curves[placement], strict=True)}
        metrics[f"{placement}.slope"] = float(np.polyfit(np.log(DEPTHS), np.log(curves[placement]), 1)[0])
    series = {
        f"{placement}-norm, slope {metrics[f'{placement}.slope']:.2f}": (DEPTHS, norms)
        for placement, norms in curves.items()
    }
    lines(
        series,
        directory / "figures" / "norms.png",
        xlabel="layers",
        ylabel="gradient norm, last feed-forward layer",
        log="xy",
    )
    return metrics


GRIDS = (
    Grid(
        "Gradient norm by depth",
        {
            f"{placement}-norm, {depth} layers": f"{placement}.norm_at_{depth}"
            for placement in ("post", "pre")
            for depth in DEPTHS
        },
        ("",),
    ),
)
