"""The Neural Turing Machine: a controller that reads and writes a memory through attention (Graves et al. 2014, arXiv
1410.5401).

Functions first: `step_controller` and `access_memory` advance a state that is a plain value; the module owns the
weights and scans the two over time.
What does not depend on the state is computed outside the scan: the projection of all inputs before it,
that of all outputs after it.
"""

from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.initializers import within
from attention_jax.models.recurrent import Layer, gate_bias
from attention_jax.models.taps import apply_edits, is_traced, record_activation, step_edits, tap
from attention_jax.ops import addressing, meshes
from attention_jax.ops.recurrent import cells

WEIGHTS = ("ntm.write_weights", "ntm.read_weights")
"""The taps of the weights of the heads."""


class Shape(NamedTuple):
    """The sizes of a machine, by the names of its options."""

    num_read_heads: int
    num_write_heads: int
    num_locations: int
    word_size: int
    num_shifts: int
    """Allowed shifts, centered on 0: 3 means one back, stay, one forward."""

    @property
    def num_heads(self) -> int:
        return self.num_read_heads + self.num_write_heads

    @property
    def interface(self) -> int:
        """Numbers a controller emits each step: key, beta, g, shifts, gamma per head; erase and add per write head."""
        return self.num_heads * (self.word_size + 3 + self.num_shifts) + 2 * self.num_write_heads * self.word_size


class State(NamedTuple):
    """The recurrent state of a machine; in a batch every field has a leading axis B."""

    controller: tuple[Float[Array, "C"], ...]
    """(hidden, cell) of an LSTM, () of a feed-forward controller."""
    reads: Float[Array, "R W"]
    weights: Float[Array, "H N"]
    """Addressing weights of the write heads, then of the read heads."""
    memory: Float[Array, "N W"]


def step_controller(
    state: State, inputs: Float[Array, "B G"], kernel: Float[Array, "R*W+C G"]
) -> tuple[Float[Array, "B C"], tuple]:
    """One step of the controllers of a batch, (hidden, their new state), on their projected inputs and the last
    reads."""
    reads = state.reads.reshape(len(inputs), -1)  # [B, R W]
    if not state.controller:  # feed-forward: the memory is all that such a machine remembers
        return jnp.tanh(inputs + reads @ kernel), ()
    product = jnp.concatenate([reads, state.controller[0]], axis=1) @ kernel
    controller = cells.advance(inputs, product, state.controller)
    return controller[0], controller


def reorder_gates(init):
    """An initializer of an LSTM's kernel [.., 4 C] whose draws for gates (i, f, o, g) are put in the order of
    `ops.recurrent.cells`, (i, f, g, o).

    The recorded results used the first order; this way each gate starts with the same values as then.
    """

    def initialize(rng, shape, dtype=jnp.float32):
        i, f, o, g = jnp.split(init(rng, shape, dtype), 4, axis=1)
        return jnp.concatenate([i, f, g, o], axis=1)

    return initialize


def split_interface(
    emitted: Float[Array, "P"], shape: Shape
) -> tuple[addressing.Address, Float[Array, "Hw W"], Float[Array, "Hw W"]]:
    """Splits what the controller emitted into addresses (fields with a leading head axis), erase and add vectors, each
    in its range."""
    split = shape.num_heads * (shape.word_size + 3 + shape.num_shifts)
    per_head = emitted[:split].reshape(shape.num_heads, -1)  # [H, W + 3 + shifts]
    erase, add = emitted[split:].reshape(2, shape.num_write_heads, shape.word_size)  # [Hw, W] each
    key, beta, gate, gamma, shift = jnp.split(
        per_head, [shape.word_size, shape.word_size + 1, shape.word_size + 2, shape.word_size + 3], axis=-1
    )
    address = addressing.Address(
        jnp.tanh(key), nn.softplus(beta[:, 0]), nn.sigmoid(gate[:, 0]), nn.softmax(shift), 1 + nn.softplus(gamma[:, 0])
    )
    return address, nn.sigmoid(erase), jnp.tanh(add)


def access_memory(
    state: State, emitted: Float[Array, "P"], shape: Shape, edits: tuple = (), read_first: bool = False
) -> State:
    """One memory access: all heads are addressed, the write heads write, then the read heads read, or before it if
    `read_first`. `edits` of the weights are those of the write heads and of the read heads."""
    address, erase, add = split_interface(emitted, shape)
    weights = jax.vmap(addressing.locate, in_axes=(None, 0, 0))(state.memory, state.weights, address)  # [H, N]
    if edits:
        edited_weights = zip(edits, jnp.split(weights, [shape.num_write_heads]), strict=True)
        weights = jnp.concatenate([apply_edits(*pair) for pair in edited_weights])
    memory = addressing.write(state.memory, weights[: shape.num_write_heads], erase, add)
    read_memory = state.memory if read_first else memory
    reads = addressing.read(read_memory, weights[shape.num_write_heads :])  # [R, W]
    return state._replace(reads=reads, weights=weights, memory=memory)


def weight_edits(module: nn.Module, shape: Shape, batch: int, steps: int) -> tuple:
    """What replaces the weights of the write heads, and of the read heads, in all steps; () if nothing does."""
    counts = shape.num_write_heads, shape.num_read_heads
    shapes = [(batch, steps, heads, shape.num_locations) for heads in counts]
    edits = tuple(step_edits(module, *pair) for pair in zip(WEIGHTS, shapes, strict=True))
    return edits if any(edits) else ()


def initial_state(machine: nn.Module, shape: Shape) -> State:
    """The state before the first step: learned controller state and reads, all heads at location 0, an empty
    memory; or `trainable_initial_state`."""
    if machine.options.state_init == "trained":
        return trainable_initial_state(machine, shape)
    small = nn.initializers.normal(0.01)
    controller = ()
    if machine.options.controller == "lstm":
        controller = tuple(
            machine.param(name, small, (machine.options.hidden_size,)) for name in ("hidden_start", "cell_start")
        )
    reads = machine.param("reads_start", small, (shape.num_read_heads, shape.word_size))
    weights = jnp.zeros((shape.num_heads, shape.num_locations)).at[:, 0].set(1.0)
    size = (shape.num_locations, shape.word_size)
    if machine.options.memory_init == "constant":
        memory = jnp.full(size, 1e-6)
    else:
        memory = machine.param("memory_start", nn.initializers.truncated_normal(0.5), size)
        memory = jax.lax.stop_gradient(memory) if machine.options.memory_init == "random" else memory
    return State(controller, reads, weights, memory)


def trainable_initial_state(machine: nn.Module, shape: Shape) -> State:
    """Trained reads, weights and memory, the first two and a learned memory as linear maps from an input of 1."""
    glorot = nn.initializers.xavier_uniform(batch_axis=0)
    linear_param = lambda name, count, size: machine.param(name, glorot, (count, 1, size))[:, 0]
    size, kind = (shape.num_locations, shape.word_size), machine.options.memory_init
    if kind == "constant":
        memory = machine.param("memory_start", nn.initializers.constant(1e-6), size)
    elif kind == "learned":
        memory = jnp.tanh(linear_param("memory_start", 1, shape.num_locations * shape.word_size).reshape(size))
    else:
        memory = jnp.tanh(machine.param("memory_start", nn.initializers.normal(0.5), size))
    reads = jnp.tanh(linear_param("reads_start", shape.num_read_heads, shape.word_size))
    weights = nn.softmax(linear_param("weights_start", shape.num_heads, shape.num_locations))
    zero = jnp.zeros(machine.options.hidden_size)
    return State((zero, zero) if machine.options.controller == "lstm" else (), reads, weights, memory)


class NTM(nn.Module):
    """A Neural Turing Machine (Graves et al. 2014, figure 1) over a batch of sequences.

    Call it with inputs [B, T, I]; returns logits [B, T, `outputs`] and, with `return_weights`, the weights of the
    heads over the memory locations. `memory_init`: "constant" 1e-6, "learned", or "random" (a truncated normal draw,
    part of the parameters but never trained); compared by Collier & Beel 2018 (arXiv 1807.08518), in whose code all
    three are trained: `state_init` "trained". By default every head starts at location 0.

    >>> from attention_jax import config
    >>> model = NTM(config.NTMConfig(hidden_size=4, num_locations=6, word_size=3), outputs=2)
    >>> (logits, _), params = jax.eval_shape(model.init_with_output, jax.random.key(0), jnp.ones((5, 7, 2)))
    >>> logits.shape
    (5, 7, 2)
    """

    options: config.NTMConfig
    outputs: int

    @nn.compact
    def __call__(self, inputs: Float[Array, "B T I"], *, return_weights: bool = False):
        """Logits `[B, T, O]` and, with `return_weights`, {"write": [B, T, Hw, N], "read": [B, T, Hr, N]}."""
        options = self.options
        shape = Shape(*(getattr(options, name) for name in Shape._fields))
        size, reads, clip = options.hidden_size, options.num_read_heads * options.word_size, options.output_clip
        dense, is_xavier = nn.initializers.lecun_normal(), options.controller_init == "xavier"
        has_cell = options.controller == "lstm"
        if options.forget_bias and not has_cell:
            raise InputError(f"--model.forget-bias needs --model.controller lstm, got {options.controller}")
        gates, recurrent, kernel_init = (
            (4 * size, reads + size, reorder_gates(dense)) if has_cell else (size, reads, dense)
        )
        kernel_init = within((6 / (inputs.shape[-1] + recurrent + gates)) ** 0.5) if is_xavier else kernel_init
        controller_kernel = self.param("controller", kernel_init, (recurrent, gates))
        head_kernel = self.param("heads", dense, (size, shape.interface))
        head_bias = self.param("heads_bias", nn.initializers.normal(0.01), (shape.interface,))
        state = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (inputs.shape[0], *leaf.shape)), initial_state(self, shape)
        )
        advance = jax.vmap(partial(access_memory, read_first=options.read_first), in_axes=(0, 0, None, 0))

        @jax.checkpoint  # only the states are kept for the gradient: faster here than keeping every small intermediate
        def step(state: State, inputs: tuple):
            x, edits = inputs  # [B, G], and edits of [B, heads, N]
            hidden, controller = step_controller(state, x, controller_kernel)
            emitted = hidden @ head_kernel + head_bias[None]
            emitted = jnp.clip(emitted, -clip, clip) if clip else emitted
            state = state._replace(controller=controller)
            state = advance(state, emitted, shape, edits)
            features = jnp.concatenate([hidden, state.reads.reshape(len(x), -1)], axis=1)  # [B, C + R W]
            return state, (features, *((state.weights,) if return_weights or is_traced(self) else ()))

        bias = gate_bias(options.forget_bias)
        projected = nn.Dense(gates, kernel_init=kernel_init, bias_init=bias, name="input")(inputs)  # [B, T, G]
        _, (features, *weights) = meshes.scan_with_closure(
            step, state, (projected.swapaxes(0, 1), weight_edits(self, shape, *inputs.shape[:2]))
        )
        logits = tap(self, "logits", nn.Dense(self.outputs, name="output")(features.swapaxes(0, 1)))  # [B, T, O]
        if not weights:
            return logits, {}
        weights = jnp.split(weights[0].swapaxes(0, 1), [shape.num_write_heads], axis=2)  # [B, T, Hw, N], [B, T, Hr, N]
        for name, x in zip(WEIGHTS, weights, strict=True):
            record_activation(self, name, x)
        return logits, {"write": weights[0], "read": weights[1]} if return_weights else {}


class StackedLSTM(nn.Module):
    """The paper's baseline: LSTM layers over the inputs, then the output layer, without an external memory."""

    options: config.StackedLSTMConfig
    outputs: int

    @nn.compact
    def __call__(self, inputs: Float[Array, "B T I"], *, return_weights: bool = False):
        """Logits `[B, T, O]` and an empty dict: the model has no attention."""
        x = inputs.swapaxes(0, 1)  # [T, B, I]
        for number in range(self.options.num_layers):
            layer = Layer((x.shape[-1],), self.options.hidden_size, name=f"layer_{number}")
            x, _ = layer.scan(layer.project(x), layer.zero_state(inputs.shape[0]))
        return nn.Dense(self.outputs, name="output")(x.swapaxes(0, 1)), {}  # [B, T, O]
