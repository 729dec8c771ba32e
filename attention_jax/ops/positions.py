"""Position encodings that act on vectors: sinusoidal (added to embeddings) and rotary (RoPE, of queries and keys).

Encodings that act on scores are biases of `attend`: attention_jax/ops/biases.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from attention_jax.errors import InputError
from attention_jax.ops.precision import accumulator

FAR = 2**12
"""Positions from which angles are computed by integer arithmetic: in float32 their error grows with the position, to
about 2e-4 there."""


def as_positions(x: Int[Array, "..."] | int) -> Int[Array, "..."] | int:
    """Return integers of any type in the type of positions, JAX's default integer, so that sums with other positions
    neither wrap nor promote. What that type does not hold becomes its closest number.

    >>> as_positions(jnp.int8(100)).dtype == jnp.arange(2).dtype, as_positions(2**40) >= 2**31 - 1
    (True, True)
    """
    dtype = jnp.result_type(int)
    least, most = int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
    if isinstance(x, int | np.integer):
        return min(max(int(x), least), most)
    if isinstance(x, np.ndarray):
        return jnp.asarray(np.clip(x, max(least, np.iinfo(x.dtype).min), min(most, np.iinfo(x.dtype).max)), dtype)
    x = jnp.asarray(x)
    return (jnp.minimum(x, x.dtype.type(most)) if jnp.iinfo(x.dtype).max > most else x).astype(dtype)


def saturating_add(positions: Int[Array, "..."] | int, distance: int) -> Int[Array, "..."] | int:
    """Return positions + distance, or the largest or smallest integer where the type does not hold the sum.

    >>> saturating_add(jnp.array([2, 2**31 - 1], jnp.int32), 1).tolist()
    [3, 2147483647]
    """
    positions = jnp.asarray(positions)
    info = jnp.iinfo(positions.dtype)
    if distance > 0:
        return jnp.minimum(positions, info.max - distance) + distance
    return jnp.maximum(positions, info.min - distance) + distance


def positions_within(segment: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Return the position of each token within its segment: 0, 1, ... from each change of the segment id.

    >>> positions_within(jnp.array([[4, 4, 4, 7, 8, 8]])).tolist()
    [[0, 1, 2, 0, 0, 1]]
    """
    index = jnp.broadcast_to(jnp.arange(segment.shape[1], dtype=jnp.int32), segment.shape)  # [B, T]
    begins = jnp.diff(segment, axis=1, prepend=segment[:, :1]) != 0
    return index - lax.cummax(jnp.where(begins, index, 0), axis=1)


def sinusoidal(positions: Int[Array, "T"], width: int, dtype=jnp.float32) -> Float[Array, "T D"]:
    """PE(t, 2i) = sin(t / 10000^(2i/d)), PE(t, 2i+1) = cos(t / 10000^(2i/d)) (Vaswani et al. 2017, section 3.5).

    For any k, PE(t + k) is a rotation of PE(t) that does not depend on t. `dtype` is float32 or float64.

    >>> print(sinusoidal(jnp.arange(2), 4).round(3))
    [[0.    1.    0.    1.   ]
     [0.841 0.54  0.01  1.   ]]
    """
    angles = _angles(positions, (width + 1) // 2, width, dtype)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)  # [T, D/2, 2]
    return pairs.reshape(positions.shape[0], 2 * angles.shape[1])[:, :width]  # [T, D]


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by `factor`, as frequencies (position interpolation: Chen et al. 2023, eq. 4).

    >>> float(LinearScaling(4.0)(np.array(1.0)))
    0.25
    """

    factor: float

    def __post_init__(self):
        _check_positive(self, self.factor)

    def __call__(self, frequency):
        return frequency / self.factor


@dataclass(frozen=True)
class Llama3Scaling:
    """Frequencies of Llama 3.1 for longer texts: those that turn less than `low` times in the `original` length are
    divided by `factor`, those that turn more than `high` times are kept, and a line connects the two between.

    >>> [round(float(Llama3Scaling(8.0, 1.0, 4.0, 8192.0)(np.array(f))), 6) for f in (1.0, 2e-3, 8e-5)]
    [1.0, 0.001188, 1e-05]
    """

    factor: float
    low: float
    high: float
    original: float

    def __post_init__(self):
        _check_positive(self, self.factor, self.low, self.high, self.original)
        if self.low >= self.high:
            raise InputError(f"a scaling llama3 needs low < high, turns in the original length, got {self}")

    def __call__(self, frequency):
        turns = self.original * frequency / (2 * np.pi)
        blend = ((turns - self.low) / (self.high - self.low)).clip(0.0, 1.0)
        return frequency * (blend + (1.0 - blend) / self.factor)


@dataclass(frozen=True)
class YarnScaling:
    """YaRN, for texts of up to `factor` times the `original` length (Peng et al. 2023, sections 3.2 and 3.4).

    Pairs that turn more than `fast` times in the original length are kept, those that turn less than `slow` times are
    divided by `factor`, and the pairs between are mixtures of the two. Queries and keys are multiplied by `amplitude`,
    if None by 0.1 ln(factor) + 1 (eq. 22), so that logits are divided by the paper's temperature t.

    The mixture is linear in the index of the pair, as in the authors' code and in the models that were trained with it;
    that of eq. 18 is linear in the turns, as `Llama3Scaling`. `truncate` rounds both ends of it to whole pairs,
    outwards, as they do; gpt-oss does not.

    >>> frequency = np.array([1.0, 0.5, 0.25, 0.125])  # 10.2, 5.1, 2.5 and 1.3 turns in 64 positions
    >>> (YarnScaling(4.0, 64)(frequency) / frequency).tolist()
    [1.0, 0.8125, 0.625, 0.4375]
    """

    factor: float
    original: float
    fast: float = 32.0
    slow: float = 1.0
    amplitude: float | None = None
    truncate: bool = True

    def __post_init__(self):
        amplitude = () if self.amplitude is None else (self.amplitude,)
        _check_positive(self, self.factor, self.original, self.fast, self.slow, *amplitude)
        if not isinstance(self.truncate, bool):
            raise InputError(f"truncate of a scaling yarn must be True or False, got {self}")
        if self.factor < 1 or self.slow >= self.fast or self.original <= 2 * np.pi * self.slow:
            raise InputError(f"a scaling yarn needs factor >= 1, slow < fast and original > 2 pi slow, got {self}")
        if self.amplitude is None:
            object.__setattr__(self, "amplitude", 0.1 * math.log(self.factor) + 1)

    def __call__(self, frequency):
        pairs, xp = frequency.shape[0], frequency.__array_namespace__()
        if pairs < 2:
            return frequency  # the ramp begins at the first pair or after it
        step = xp.log(frequency[0] / frequency[-1]) / (pairs - 1)
        turns = self.original * frequency[0] / (2 * np.pi)  # of pair 0; those of pair i are turns * exp(-step * i)
        first, last = xp.log(turns / self.fast) / step, xp.log(turns / self.slow) / step
        if self.truncate:
            first, last = xp.floor(first), xp.ceil(last)
        first = first.clip(0.0)
        last = last.clip(None, 2.0 * pairs - 1.0).clip(first + 1e-3)
        blend = ((xp.arange(pairs, dtype=frequency.dtype) - first) / (last - first)).clip(0.0, 1.0)
        return frequency * (1.0 - blend + blend / self.factor)


def _check_positive(scaling, *numbers):
    if not all(isinstance(x, int | float) and not isinstance(x, bool) and 0 < x < np.inf for x in numbers):
        raise InputError(f"a scaling of rotary positions needs positive numbers, got {scaling}")


def rotary(
    x: Float[Array, "T D"],
    positions: Int[Array, "T"],
    theta: float = 10_000.0,
    scaling: Callable[[Array], Array] | None = None,
    inverse: bool = False,
    fraction: float = 1.0,
) -> Float[Array, "T D"]:
    """Rotary position embedding (RoPE): the pairs (x_i, x_{i+D/2}) of the vector at position t are rotated by the angle
    t / theta^(2i/D) (Su et al. 2021, eq. 34, theta = 10000).

    The dot product of a rotated query and a rotated key depends on their positions only through the difference. Pairs
    are halves apart rather than neighbors (as in GPT-NeoX), which is the same map up to an order of the channels.
    Ones before zeros become the sinusoids of a position, cosines before sines. `scaling` maps the frequencies
    1 / theta^(2i/D) to others; its attribute `amplitude`, if it has one, multiplies the cosines and sines. `inverse`
    returns the vectors that this maps to x. With a `fraction` below 1, the first int(fraction D) channels are rotated,
    as if there were no others (`partial_rotary_factor` in transformers).

    >>> [round(float(x), 3) for x in rotary(jnp.array([[1.0, 0.0]]), jnp.array([2]))[0]]  # cos 2, sin 2
    [-0.416, 0.909]
    """
    x, half = jnp.asarray(x), int(x.shape[-1] * fraction) // 2
    angles = _angles(positions, half, 2 * half, accumulator(x.dtype), theta, scaling)
    amplitude = getattr(scaling, "amplitude", 1.0)
    if inverse:
        angles, amplitude = -angles, 1 / amplitude
    cos, sin = (amplitude * jnp.cos(angles)).astype(x.dtype), (amplitude * jnp.sin(angles)).astype(x.dtype)  # [T, D/2]
    first, second = x[:, :half], x[:, half : 2 * half]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, x[:, 2 * half :]], axis=-1)


def _angles(positions, pairs: int, width: int, dtype, theta: float = 10_000.0, scaling=None):
    """Compute t / theta^(2i/width) for i < pairs, [T, pairs], plus or minus whole turns for large integers t in
    float32. theta may be traced, and has a gradient then."""
    frequencies = theta ** (-2.0 * jnp.arange(pairs, dtype=dtype) / width)
    is_traced = isinstance(theta, jax.core.Tracer)
    with jax.enable_x64(is_traced or jax.config.jax_enable_x64):  # float64 for the frequencies of a traced theta
        base = lax.convert_element_type(lax.stop_gradient(theta), jnp.float64) if is_traced else float(theta)
        exact = base ** (-2.0 * np.arange(pairs) / width)
        exact = exact if scaling is None else scaling(exact)
        words = _split_turns(exact / (2 * np.pi))
    if scaling is not None:
        frequencies = scaling(frequencies) if is_traced else jnp.asarray(np.asarray(exact), dtype)
    near = positions.astype(dtype)[:, None] * frequencies[None, :]
    if dtype != jnp.float32 or not jnp.issubdtype(positions.dtype, jnp.integer):
        return near
    positions = as_positions(positions)[:, None]
    size = jnp.abs(positions)
    far = _fraction_of_turn(size.astype(jnp.uint32), *words)
    if size.dtype == jnp.int64:  # 2^32 positions are the lower words of as many turns
        far = far + _fraction_of_turn((size >> 32).astype(jnp.uint32), words[1], jnp.zeros_like(words[1]))
    far = far * jnp.where(positions < 0, -1.0, 1.0)
    far = far + (near - lax.stop_gradient(near)) if is_traced else far  # the gradient of theta
    return jnp.where(size < FAR, near, far)


def _split_turns(turns):
    """The fractions of turns [pairs] in units of 2^-64, split in two words of 32 bits, each [1, pairs]."""
    scaled = turns % 1.0 * 2.0**32
    return tuple(jnp.asarray(x, jnp.uint32)[None, :] for x in (scaled, scaled % 1.0 * 2.0**32))


def _fraction_of_turn(positions, high, low):
    """Compute the angle within half a turn of positions [T, 1] times the fractions of a turn that `_split_turns` gives,
    by integer arithmetic modulo a turn: [T, pairs]."""
    (a, b), (c, d) = ((x >> 16, x & 0xFFFF) for x in (positions, low))
    carry = a * d + (b * d >> 16)
    carried = a * c + (carry >> 16) + (b * c + (carry & 0xFFFF) >> 16)  # the upper word of positions * low
    fraction = lax.bitcast_convert_type(positions * high + carried, jnp.int32)
    return fraction.astype(jnp.float32) * np.float32(2 * np.pi / 2**32)
