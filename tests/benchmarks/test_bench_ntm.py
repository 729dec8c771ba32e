"""The two machines that the benchmark compares compute the same thing."""

import jax
import numpy as np
import pytest

from attention_jax import config
from attention_jax.data.algorithmic import copy
from attention_jax.models.ntm import NTM
from benchmarks import ntm

torch = pytest.importorskip("torch", reason="the comparison needs torch==2.13.0, an extra")


def test_the_pytorch_machine_is_ours():
    torch.manual_seed(0)
    machine = ntm.plain_torch(torch)
    array = lambda tensor: tensor.detach().numpy()
    cell = machine.controller
    from_input, from_state = array(cell.weight_ih).T, array(cell.weight_hh).T  # [bits + 1 + width, 400], [100, 400]
    params = {
        "input": {"kernel": from_input[:9], "bias": array(cell.bias_ih) + array(cell.bias_hh)},
        "controller": np.concatenate([from_input[9:], from_state]),
        "heads": array(machine.interface.weight).T,
        "heads_bias": array(machine.interface.bias),
        "output": {"kernel": array(machine.output.weight).T, "bias": array(machine.output.bias)},
        "hidden_start": array(machine.start[0])[0],
        "cell_start": array(machine.start[1])[0],
        "reads_start": array(machine.start[2]),
    }
    inputs = copy(np.random.default_rng(0), 1, 5, 5).inputs
    model = NTM(config.NTMConfig(), 8)
    shapes = jax.eval_shape(model.init, jax.random.key(0), inputs)["params"]
    assert jax.tree.map(np.shape, params) == jax.tree.map(lambda x: x.shape, shapes)
    logits = jax.jit(model.apply)({"params": params}, inputs)[0][0]
    np.testing.assert_allclose(logits, array(machine(torch.from_numpy(inputs[0]))), atol=1e-4)
