"""Initial values that the training options ask for, and gradients that are clipped entry by entry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.config import Optim, Train
from attention_jax.train.initial import with_ranges
from attention_jax.train.optimizer import optimizer

PARAMS = {
    "layer": {"kernel": jnp.ones((400, 30)), "bias": jnp.zeros(30)},
    "norm": {"scale": jnp.ones(30), "bias": jnp.zeros(30)},
    "embed": {"table": jnp.ones((50, 30))},
}
init = lambda rng: PARAMS


def largest(**options) -> dict[str, float]:
    params = with_ranges(init, Train(**options))(jax.random.key(0))
    return {f"{a} {b}": float(jnp.abs(x).max()) for a, inner in params.items() for b, x in inner.items()}


def test_by_default_nothing_is_drawn_again():
    assert with_ranges(init, Train()) is init


def test_all_matrices_are_drawn_from_one_range():
    params = with_ranges(init, Train(init_range=0.1))(jax.random.key(0))
    for matrix in (params["layer"]["kernel"], params["embed"]["table"]):
        assert 0.095 < float(jnp.abs(matrix).max()) <= 0.1 and abs(float(matrix.mean())) < 0.01
        assert float(matrix.std()) == pytest.approx(0.1 / 3**0.5, rel=0.05)  # of a uniform distribution
    assert not np.array_equal(params["layer"]["kernel"][:50], params["embed"]["table"])
    assert float(params["norm"]["scale"].min()) == 1.0 and float(jnp.abs(params["layer"]["bias"]).max()) == 0.0


def test_linear_init_scales_with_fan_in():
    biases, both = largest(init_linear="biases"), largest(init_linear="all")
    assert biases["layer kernel"] == 1.0 and 0.04 < biases["layer bias"] <= 0.05  # 1 / sqrt(400)
    assert 0.049 < both["layer kernel"] <= 0.05 and 0.04 < both["layer bias"] <= 0.05
    for maxima in (biases, both):
        assert (maxima["norm bias"], maxima["norm scale"], maxima["embed table"]) == (0.0, 1.0, 1.0)


def test_each_entry_of_a_gradient_is_clipped():
    gradient = {"w": jnp.array([-30.0, 0.5, 12.0])}
    transform = optimizer(Optim("sgd", learning_rate=1.0, clip_value=10.0), 1)
    update, _ = transform.update(gradient, transform.init(gradient), gradient)
    assert update["w"].tolist() == [10.0, -0.5, -10.0]


def test_matrices_of_a_score_are_linear_maps():
    """A PyTorch layer of attention draws its linear maps W_q, W_k and v from 1 / sqrt(inputs), too."""
    score = {"query_kernel": jnp.ones((400, 30)), "key_kernel": jnp.ones((100, 30)), "vector": jnp.ones(25)}
    init = lambda rng: {"alignment": {"score": score}}
    params = with_ranges(init, Train(init_linear="all"))(jax.random.key(0))["alignment"]["score"]
    maxima = {name: float(jnp.abs(x).max()) for name, x in params.items()}
    assert (
        0.049 < maxima["query_kernel"] <= 0.05 and 0.095 < maxima["key_kernel"] <= 0.1 and 0.1 < maxima["vector"] <= 0.2
    )
    unchanged = with_ranges(init, Train(init_linear="biases"))(jax.random.key(0))["alignment"]["score"]
    assert all((x == 1).all() for x in unchanged.values())


def test_score_scales_are_not_resampled():
    score = {"sharpness": jnp.ones(()), "query_scale": jnp.ones(8)}
    for options in ({"init_linear": "all"}, {"init_range": 0.1}):
        params = with_ranges(lambda rng: {"alignment": {"score": score}}, Train(**options))(jax.random.key(0))
        assert all((x == 1).all() for x in params["alignment"]["score"].values())


STACK = {
    "decoder": {
        "layers_0": {
            "dense": {"kernel": jnp.ones((3, 30, 400)), "bias": jnp.zeros((3, 30))},  # [layers, out, in]
            "norm": {"scale": jnp.ones((3, 30)), "bias": jnp.zeros((3, 30))},
        }
    }
}


@pytest.mark.parametrize("kind", ["all", "normal"])
def test_scanned_layers_are_initialized_like_single_ones(kind):
    params = with_ranges(lambda rng: STACK, Train(init_linear=kind))(jax.random.key(0))["decoder"]["layers_0"]
    assert float(params["dense"]["kernel"].std()) == pytest.approx(0.05 / (3**0.5 if kind == "all" else 1), rel=0.05)
    assert (0.045 < float(params["dense"]["bias"].max()) <= 0.05) == (kind == "all")
    assert (params["norm"]["scale"] == 1).all() and (params["norm"]["bias"] == 0).all()


def test_a_range_leaves_vectors_of_scanned_layers_alone():
    params = with_ranges(lambda rng: STACK, Train(init_range=0.1))(jax.random.key(0))["decoder"]["layers_0"]
    assert 0.099 < float(params["dense"]["kernel"].max()) <= 0.1 and (params["dense"]["bias"] == 0).all()
    assert (params["norm"]["scale"] == 1).all()


def test_a_convolution_has_the_inputs_of_its_window():
    init = lambda rng: {"conv": {"kernel": jnp.ones((3, 3, 100, 20))}}
    kernel = with_ranges(init, Train(init_linear="all"))(jax.random.key(0))["conv"]["kernel"]
    assert 0.033 < float(kernel.max()) <= 1 / 30


def test_normal_init_variance_and_tails():
    layer = {"recurrent_kernel": jnp.ones((400, 90)), "bias": jnp.ones(90), "score": {"query_kernel": jnp.ones((4, 4))}}
    params = with_ranges(lambda rng: {"cell": layer}, Train(init_linear="normal"))(jax.random.key(0))["cell"]
    kernel = params["recurrent_kernel"] * 20  # sqrt(400)
    assert float(kernel.std()) == pytest.approx(1.0, rel=0.02)
    assert float((jnp.abs(kernel) > 2.3).mean()) == pytest.approx(0.0214, rel=0.15)  # of N(0, 1); truncated: 0
    assert (params["bias"] == 1).all() and (params["score"]["query_kernel"] == 1).all()
