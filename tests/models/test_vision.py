"""Vision models: patches against a convolution, exact parameter counts, positions, pools, and the last layer's short
cut."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import UNOPTIMIZED
from tiers import slow_but

from attention_jax.config import VIT_SIZES, ViTConfig, import_object
from attention_jax.errors import InputError
from attention_jax.models.blocks import Block, FeedForward
from attention_jax.models.stem import ConvolutionalStem, convolve_by_matmul
from attention_jax.models.vit import (
    ImageLayer,
    attention_pool,
    interpolate,
    patches,
    rotary_2d,
    sinusoidal_2d,
    stochastic_depth,
    with_shifts,
)
from experiments.papers.options import CCTConfig, ResNetConfig

SMALL = ViTConfig(patch_size=4, hidden_size=16, mlp_dim=32, num_layers=2, num_heads=2)


def build_model(options, classes, size):
    return import_object(options.module)(options, classes, size)


def count_parameters(config, classes, size, channels):
    """Parameters; of a deep Transformer from its first two layers, since all layers are alike."""
    if getattr(config, "layers", 0) > 2:
        one_layer, two_layers = (
            count_parameters(replace(config, num_layers=n), classes, size, channels) for n in (1, 2)
        )
        return one_layer + (config.num_layers - 1) * (two_layers - one_layer)
    model = build_model(config, classes, size)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, size, size, channels)))["params"]
    return sum(x.size for x in jax.tree.leaves(shapes))


def fast_jit(function):
    return jax.jit(function, compiler_options=UNOPTIMIZED)


def random_model(config, size=8, channels=3):
    """A model, parameters that are nowhere zero, and three images."""
    model = build_model(config, 5, size)
    r = np.random.default_rng(0)
    x = jnp.asarray(r.normal(size=(3, size, size, channels)).astype(np.float32))
    shapes = jax.eval_shape(model.init, jax.random.key(0), x)
    return model, jax.tree.map(lambda p: r.normal(size=p.shape, scale=0.3).astype(np.float32), shapes), x


def test_patches_times_a_matrix_is_a_strided_convolution():
    x = jax.random.normal(jax.random.key(0), (2, 12, 12, 3))
    kernel = jax.random.normal(jax.random.key(1), (4, 4, 3, 7))
    expected = jax.lax.conv_general_dilated(x, kernel, (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    actual = jax.jit(lambda x: patches(x, 4) @ kernel.reshape(-1, 7))(x)
    np.testing.assert_allclose(actual, expected.reshape(2, 9, 7), atol=1e-5)


def test_shifted_patch_holds_four_corner_windows():
    """Lee et al. 2021, figure 3: read off the image with NumPy, zeros beyond its edges."""
    image = np.random.default_rng(0).normal(size=(8, 8, 2)).astype(np.float32)
    actual = np.asarray(jax.jit(lambda x: patches(with_shifts(x, 2), 4))(image[None]))[0].reshape(2, 2, 4, 4, 5, 2)
    wide = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    for row in range(2):
        for column in range(2):
            for number, (dy, dx) in enumerate([(0, 0), (-2, -2), (-2, 2), (2, -2), (2, 2)]):
                y, x = 4 * row + dy + 2, 4 * column + dx + 2
                np.testing.assert_array_equal(actual[row, column, :, :, number], wide[y : y + 4, x : x + 4])


def test_shifted_patches_add_embedding_and_norm_parameters():
    assert count_parameters(replace(SMALL, stem="shifted"), 5, 8, 3) - count_parameters(SMALL, 5, 8, 3) == 4 * (
        4 * 4 * 3
    ) * 16 + 2 * 5 * (4 * 4 * 3)
    with pytest.raises(InputError, match="at least 2 pixels"):
        count_parameters(replace(SMALL, patch_size=1, stem="shifted"), 5, 8, 3)


@pytest.mark.slow
def test_convolutional_stem_matches_its_definition():
    """By NumPy and XLA's own convolution: halving, groups of 8 channels with mean 0 and variance 1, ReLU, a map."""
    stem = ConvolutionalStem(4, 16, jnp.float32)
    images = jax.random.normal(jax.random.key(0), (2, 12, 12, 3))
    params = jax.tree.map(lambda p: np.asarray(p) + 0.1, stem.init(jax.random.key(1), images)["params"])
    x = images
    for i in range(2):
        kernel, norm = params[f"Conv_{i}"]["kernel"], params[f"GroupNorm_{i}"]
        x = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        groups = np.asarray(x).reshape(*x.shape[:3], -1, 8)
        mean, variance = (f(groups, axis=(1, 2, 4), keepdims=True) for f in (np.mean, np.var))
        x = ((groups - mean) / np.sqrt(variance + 1e-6)).reshape(x.shape) * norm["scale"] + norm["bias"]
        x = np.maximum(x, 0)
    expected = np.asarray(x).reshape(2, 9, 16) @ params["embedding"]["kernel"] + params["embedding"]["bias"]
    np.testing.assert_allclose(stem.apply({"params": params}, images), expected, atol=2e-5)


def test_convolutional_stem_makes_one_token_per_patch():
    model = replace(SMALL, stem="convolutions")
    assert count_parameters(model, 5, 8, 3) - count_parameters(SMALL, 5, 8, 3) == (
        9 * 3 * 8 + 2 * 8 + 9 * 8 * 16 + 2 * 16 + 16 * 16 - 4 * 4 * 3 * 16
    )
    with pytest.raises(InputError, match="power of 2"):
        count_parameters(replace(model, patch_size=3), 5, 9, 3)


PAPER = [("S", 16, 22_050_664), ("B", 16, 86_567_656)]
PAPER += [pytest.param(*case, marks=pytest.mark.slow) for case in (("L", 16, 304_326_632), ("H", 14, 632_045_800))]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "patch", "parameters"), PAPER)
def test_parameter_counts_of_the_paper(size, patch, parameters):
    """Table 1 of Dosovitskiy et al. has 86M, 307M and 632M; these are the exact numbers at 224 pixels and 1,000
    classes."""
    assert count_parameters(ViTConfig(patch_size=patch, **VIT_SIZES[size]), 1000, 224, 3) == parameters


def test_parameter_count_of_d2l_vit():
    d, mlp, tokens = 512, 2048, 36 + 1
    layer = 4 * d * d + 4 * d + d * mlp + mlp + mlp * d + d  # no biases in the attention
    config = ViTConfig(patch_size=16, hidden_size=d, mlp_dim=mlp, num_layers=2, num_heads=8, use_bias=False)
    assert count_parameters(config, 10, 96, 1) == (256 * d + d) + d + tokens * d + 2 * layer + 2 * d + d * 10 + 10


@pytest.mark.parametrize(("height", "width"), [(8, 12), (10, 10)])
def test_images_that_cannot_be_cut_are_named(height, width):
    with pytest.raises(InputError, match=f"patch size, 4 pixels, got {height} x {width}"):
        patches(jnp.zeros((1, height, width, 3)), 4)
    with pytest.raises(InputError, match="multiple of --model.num-heads, got 16 and 3"):
        build_model(ViTConfig(hidden_size=16, num_heads=3), 2, 8)


def test_channels_that_make_no_groups_are_named():
    stem = ConvolutionalStem(16, 48, jnp.float32)
    with pytest.raises(InputError, match="must be a multiple of 64, got 48"):
        jax.eval_shape(stem.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))


@pytest.mark.slow
def test_stochastic_depth_applies_to_a_single_layer():
    model = build_model(replace(SMALL, num_layers=1, stochastic_depth=0.9), 2, 8)
    images = jax.random.normal(jax.random.key(0), (64, 8, 8, 1))
    variables = jax.jit(model.init)(jax.random.key(1), images)
    run = jax.jit(lambda rng: model.apply(variables, images, train=True, rngs={"dropout": rng})[0])
    assert np.ptp(np.abs(run(jax.random.key(2)) - run(jax.random.key(3))).sum(axis=-1)) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        pytest.param(replace(SMALL, pool="mean", position_embedding="sinusoidal"), marks=pytest.mark.slow),
        pytest.param(replace(SMALL, pool="attention", position_embedding="rotary"), marks=pytest.mark.slow),
        pytest.param(replace(SMALL, position_embedding="none", use_bias=False), marks=pytest.mark.slow),
        CCTConfig(hidden_size=16, mlp_dim=16),
        ResNetConfig(widths=(16, 32), blocks_per_stage=1, num_groups=4),
    ],
)
def test_looking_changes_nothing_and_every_parameter_learns(config):
    model, params, x = random_model(config)

    def run_all(p):
        gradient = jax.grad(lambda p: jnp.square(model.apply(p, x)[0]).sum())(p)
        return model.apply(p, x), model.apply(p, x, return_weights=True), gradient

    (plain, nothing), (traced_logits, intermediates), gradient = fast_jit(run_all)(params)
    assert plain.shape == (3, 5) and nothing == {}
    np.testing.assert_allclose(plain, traced_logits, atol=1e-4)  # a class token alone in the last layer, or all tokens
    if "encoder_attention" in intermediates:
        np.testing.assert_allclose(intermediates["encoder_attention"].sum(-1), 1, atol=1e-5)
    gradients = {jax.tree_util.keystr(path): np.asarray(g) for path, g in jax.tree_util.tree_leaves_with_path(gradient)}
    dead = [name for name, g in gradients.items() if not (np.isfinite(g).all() and np.abs(g).max() > 1e-9)]
    assert [
        name for name in dead if "key']['bias" not in name
    ] == []  # a bias of the keys shifts all scores of a row: softmax cancels it


@pytest.mark.slow
def test_dropout_rates_can_be_traced_or_zero():
    model, params, x = random_model(SMALL)

    @fast_jit
    def run(rate):
        noisy = build_model(replace(SMALL, dropout=rate, attention_dropout=rate, stochastic_depth=rate), 5, 8)
        return noisy.apply(params, x, train=True, rngs={"dropout": jax.random.key(0)})[0]

    np.testing.assert_allclose(run(0.0), fast_jit(model.apply)(params, x)[0], atol=1e-5)
    assert np.abs(run(0.5) - run(0.0)).max() > 1e-2 and run._cache_size() == 1


def test_without_positions_patches_may_be_permuted():
    config = replace(SMALL, position_embedding="none", pool="mean")
    model, params, x = random_model(config)
    moved = x.reshape(3, 2, 4, 8, 3)[:, ::-1].reshape(x.shape)  # the rows of patches change places
    run = fast_jit(model.apply)
    np.testing.assert_allclose(run(params, x)[0], run(params, moved)[0], atol=1e-4)
    model, params, x = random_model(replace(config, position_embedding="sinusoidal"))
    run = fast_jit(model.apply)
    assert np.abs(run(params, x)[0] - run(params, moved)[0]).max() > 1e-3


@pytest.mark.slow
def test_interpolated_positions_take_larger_images():
    table = jnp.arange(9.0).reshape(9, 1)  # a plane over a 3 x 3 grid: 3 row + column
    np.testing.assert_allclose(interpolate(table, 3), table)
    actual = interpolate(table, 6)[:, 0].reshape(6, 6)
    np.testing.assert_allclose(actual[2:4, 2:4], [[3.0, 3.5], [4.5, 5.0]], atol=1e-5)  # inside the plane stays a plane
    for config in (SMALL, CCTConfig(hidden_size=16, mlp_dim=16)):
        model, params, x = random_model(config)
        assert fast_jit(model.apply)(params, jnp.ones((1, 16, 16, 3)))[0].shape == (1, 5)


def test_sinusoidal_2d_tells_rows_from_columns():
    at = np.asarray(jax.jit(lambda: sinusoidal_2d(4, 16))()).reshape(4, 4, 16)
    np.testing.assert_allclose(at[2, :, :8], np.broadcast_to(at[2, 0, :8], (4, 8)))
    np.testing.assert_allclose(at[:, 3, 8:], np.broadcast_to(at[0, 3, 8:], (4, 8)))
    assert len(np.unique(np.round(at.reshape(16, 16), 5), axis=0)) == 16


def test_rotary_2d_sees_displacements_only():
    q, k = jax.random.normal(jax.random.key(0), (2, 8))
    spread = jax.jit(lambda v: rotary_2d(jnp.broadcast_to(v, (1, 1, 17, 8)), 4, prefix=1)[0, 0])
    turned, key = np.asarray(spread(q)), np.asarray(spread(k))
    np.testing.assert_allclose(turned[0], q, atol=1e-6)  # the class token is not turned
    score = (turned[1:] @ key[1:].T).reshape(4, 4, 4, 4)  # row and column of the query, of the key
    np.testing.assert_allclose(score[0, 0, 1, 2], score[2, 1, 3, 3], atol=1e-5)
    for place in ((1, 1), (2, 2)):  # another column, another row
        assert abs(score[0, 0, 1, 2] - score[0, 0, *place]) > 1e-3


def test_stochastic_depth_drops_examples_keeps_mean():
    x = jnp.ones((4000, 2, 3))
    y = np.asarray(jax.jit(stochastic_depth)(x, 0.25, jax.random.key(0)))
    is_kept = np.asarray(y[:, 0, 0]) > 0
    np.testing.assert_allclose(y, np.where(is_kept, 1 / 0.75, 0)[:, None, None] * np.ones((1, 2, 3)), rtol=1e-5)
    assert abs(is_kept.mean() - 0.75) < 0.03


def test_attention_pool_is_a_weighted_sum():
    query, tokens = jax.random.normal(jax.random.key(0), (4,)), jax.random.normal(jax.random.key(1), (6, 4))
    both = jax.jit(lambda query, x: [attention_pool(query, x), jax.nn.softmax(x @ query) @ x])
    np.testing.assert_allclose(*both(query, tokens), atol=1e-5)


def test_layer_is_pre_norm_like_torch():
    torch = pytest.importorskip("torch")
    layer = ImageLayer(Block(hidden_size=16, num_heads=2, mlp_dim=32))
    x = jax.random.normal(jax.random.key(0), (2, 5, 16))
    noisy = lambda p: np.random.default_rng(p.size).normal(size=p.shape, scale=0.3).astype(np.float32)
    params = jax.tree.map(noisy, jax.eval_shape(layer.init, jax.random.key(1), x)["params"])
    torch_layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True)
    a, f = params["attention"], params["ffn"]
    tensor = lambda v: torch.from_numpy(np.array(v))
    with torch.no_grad():
        torch_layer.self_attn.in_proj_weight.copy_(
            tensor(jnp.concatenate([a[n]["kernel"].T for n in ("query", "key", "value")]))
        )
        torch_layer.self_attn.in_proj_bias.copy_(
            tensor(jnp.concatenate([a[n]["bias"] for n in ("query", "key", "value")]))
        )
        for layer_params, torch_module in (
            (a["out"], torch_layer.self_attn.out_proj),
            (f["hidden"], torch_layer.linear1),
            (f["out"], torch_layer.linear2),
        ):
            torch_module.weight.copy_(tensor(layer_params["kernel"].T))
            torch_module.bias.copy_(tensor(layer_params["bias"]))
        for layer_params, torch_module in (
            (params["attention_norm"], torch_layer.norm1),
            (params["ffn_norm"], torch_layer.norm2),
        ):
            torch_module.weight.copy_(tensor(layer_params["scale"]))
            torch_module.bias.copy_(tensor(layer_params["bias"]))
        expected = torch_layer(tensor(x)).numpy()
    run = jax.jit(layer.apply, static_argnames="outputs", compiler_options=UNOPTIMIZED)
    np.testing.assert_allclose(run({"params": params}, x)[0], expected, atol=1e-5)
    np.testing.assert_allclose(run({"params": params}, x, outputs=1)[0], expected[:, :1], atol=1e-5)


CONVOLUTIONS = [(1, 1, 5), (1, 2, 7), (3, 1, 8), (3, 2, 8), (3, 2, 9), (7, 2, 12)]


@pytest.mark.parametrize("size, stride, pixels", slow_but([(1, 2, 7), (3, 2, 8), (3, 2, 9)], CONVOLUTIONS))
def test_convolution_as_a_product_is_the_convolution(size, stride, pixels):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, pixels, pixels, 3), np.float32)
    kernel = rng.standard_normal((size, size, 3, 4), np.float32)
    names = ("NHWC", "HWIO", "NHWC")
    xla_convolve = lambda x, kernel: jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=names
    )
    matmul_convolve = lambda x, kernel: convolve_by_matmul(x, kernel, (stride, stride), "SAME")
    gradient = lambda f: jax.grad(lambda *a: (f(*a) ** 2).sum(), (0, 1))
    evaluate = fast_jit(lambda *a: [(f(*a), gradient(f)(*a)) for f in (matmul_convolve, xla_convolve)])
    (product, actual_gradients), (convolution, expected_gradients) = evaluate(x, kernel)
    np.testing.assert_allclose(product, convolution, atol=1e-5)
    for actual, expected in zip(actual_gradients, expected_gradients):
        np.testing.assert_allclose(actual, expected, atol=1e-3, rtol=1e-5)


def test_half_precision_feed_forward_saves_one_product():
    """Of the arrays as wide as its hidden units; the gradients are those of float32."""
    draw = np.random.default_rng(0).normal
    params = {"hidden": (8, 24), "out": (24, 8)}
    params = {n: {"kernel": draw(size=s) / 3, "bias": draw(size=s[1])} for n, s in params.items()}
    params, x = jax.tree.map(lambda a: jnp.bfloat16(a).astype(jnp.float32), (params, draw(size=(2, 5, 8))))
    gradients_by_dtype = {}
    for dtype in ("float32", "bfloat16"):
        ffn = FeedForward(Block(hidden_size=8, num_heads=2, mlp_dim=24, dtype=jnp.dtype(dtype)))
        pull = lambda params, x, ffn=ffn: jax.vjp(lambda params, x: ffn.apply({"params": params}, x), params, x)
        y, saved = jax.eval_shape(pull, params, x.astype(dtype))
        saved_dtypes = [a.dtype.name for a in jax.tree.leaves(saved) if a.shape == (2, 5, 24)]
        assert saved_dtypes == ["bfloat16"] if dtype == "bfloat16" else len(saved_dtypes) > 1
        gradients = fast_jit(lambda params, x, pull=pull, y=y: pull(params, x)[1](jnp.ones(y.shape, y.dtype)))
        gradients_by_dtype[dtype] = jax.tree.map(np.float32, gradients(params, x.astype(dtype)))
    for half, exact in zip(
        *map(jax.tree.leaves, (gradients_by_dtype["bfloat16"], gradients_by_dtype["float32"])), strict=True
    ):
        np.testing.assert_allclose(half, exact, rtol=0, atol=2e-2 * np.abs(exact).max())
