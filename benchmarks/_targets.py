"""Accelerators as targets of ahead-of-time compilation; the hardware itself is not needed.

The compilers for TPUs and NVIDIA GPUs run on any machine: install `"jax[tpu]"` or `"jax[cuda12]"` in the version of
jax, each in a separate environment. No driver is needed. Run one process at a time.
"""

import contextlib
import difflib
import importlib.util
import math
import os
import re
from dataclasses import dataclass, field

import jax
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from attention_jax.errors import InputError


@dataclass(frozen=True)
class Chip:
    """A device type: a TPU generation, a GPU model or the CPU."""

    name: str
    platform: str
    """JAX platform name: tpu, cuda or cpu."""
    memory: float = math.inf
    """Device memory in bytes."""
    sides: int = 0
    """Number of dimensions of a TPU topology: 2 for v5e:2x4."""
    card: dict = field(default_factory=dict, repr=False, compare=False)
    """Fields of XLA's GpuDeviceInfoProto for a GPU, in addition to `COMMON`."""


@dataclass(frozen=True)
class Target:
    """A number of devices of one type, written as "v5e:2x4" or "h200:8"."""

    name: str
    chip: Chip
    shape: tuple[int, ...]
    """Shape of the topology: (2, 4) for v5e:2x4, (8,) for h200:8."""

    @property
    def devices(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)

    @property
    def options(self) -> dict:
        """XLA compiler options; autotuning is off for GPUs because it measures on the device, which is absent."""
        absent_card = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_autotune_level": 0}
        return absent_card if self.chip.platform == "cuda" else {}


def _gpu(name: str, major: int, cores: int, memory: int, bandwidth: int, **card) -> Chip:
    """Describe a GPU with the values of openxla/xla, xla/backends/gpu/target_config/specs."""
    card |= {"core_count": cores, "cuda_compute_capability": {"major": major}}
    return Chip(name, "cuda", memory, card=card | {"memory_bandwidth": bandwidth, "device_memory_size": memory})


_AMPERE = {"fpus_per_core": 64, "l2_cache_size": 41943040, "clock_rate_ghz": 1.41,
           "shared_memory_per_core": 167936, "shared_memory_per_block_optin": 166912}  # fmt: skip
_HOPPER = {"fpus_per_core": 128, "l2_cache_size": 52428800, "clock_rate_ghz": 1.98,
           "shared_memory_per_core": 233472, "shared_memory_per_block_optin": 232448}  # fmt: skip
_BLACKWELL = _HOPPER | {"l2_cache_size": 132644864, "clock_rate_ghz": 1.965}

CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v5e", "tpu", 16 * 2**30, sides=2),  # cloud.google.com/tpu/docs
        Chip("v5p", "tpu", 95 * 2**30, sides=3),
        Chip("v6e", "tpu", 32 * 2**30, sides=2),
        _gpu("a100", 8, 108, 85100068864, 2039040000000, **_AMPERE),
        _gpu("h100", 9, 132, 84942979072, 3352320000000, **_HOPPER),
        _gpu("h200", 9, 132, 151397597184, 4800000000000, **_HOPPER),
        _gpu("b200", 10, 148, 191514411008, 7672320000000, **_BLACKWELL),
        Chip("cpu", "cpu"),
    )
}
"""TPU v4 is left out: its compiler reports two devices for each TPU, the running hardware one."""

COMMON = {
    "threads_per_block_limit": 1024, "threads_per_warp": 32, "threads_per_core_limit": 2048,
    "shared_memory_per_block": 49152, "registers_per_core_limit": 65536, "registers_per_block_limit": 65536,
    "block_dim_limit_x": 2147483647, "block_dim_limit_y": 65535, "block_dim_limit_z": 65535,
}  # fmt: skip
"""GpuDeviceInfoProto fields that all these GPUs share."""


def parse_target(name: str) -> Target:
    """Parse a target such as v5e:2x4, h200:8 or h200 (a single device); InputError for an unknown type or shape.
    >>> parse_target("v5e:2x4").devices, parse_target("h200:8").shape, parse_target("a100").devices
    (8, (8,), 1)
    """
    kind, _, size = name.lower().partition(":")
    if kind not in CHIPS:
        near = difflib.get_close_matches(kind, CHIPS, n=1)
        hint = f"perhaps you meant {near[0]}" if near else "choose one of " + ", ".join(CHIPS)
        raise InputError(f"a target needs a known device, such as v5e:2x4 or h200:8; got {name!r}; {hint}")
    chip = CHIPS[kind]
    sides = chip.sides or 1
    shape = tuple(map(int, size.split("x"))) if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", size) else ()
    if not size or shape == (1,):
        shape = (1,) * sides
    if len(shape) != sides:
        example = {1: "8", 2: "2x4", 3: "2x2x1"}[sides]
        raise InputError(
            f"the target {kind} needs its size as in {kind}:{example}, or {kind} for one chip; got {name!r}"
        )
    return Target(name.lower(), chip, shape)


def devices(target: Target) -> list:
    """Return device descriptions to compile for; InputError if the package with the target's compiler is missing."""
    platform = target.chip.platform
    if platform == "cpu":
        return present_devices(target)
    extra, packages = {"tpu": ("tpu", ("libtpu",)), "cuda": ("cuda12", ("jax_cuda12_plugin", "jax_cuda13_plugin"))}[
        platform
    ]
    if not any(importlib.util.find_spec(package) for package in packages):
        raise InputError(
            f"to compile for {target.name} its compiler is needed, which is not installed: "
            f'pip install "jax[{extra}]=={jax.__version__}"'
        )
    from jax.experimental.topologies import get_topology_desc

    try:
        return list(get_topology_desc(platform=platform, **_description(target)).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"there is no {target.name} for its compiler; give another target ({reason})") from error


def compile_for(target: Target, fn, *shapes) -> jax.stages.Compiled:
    """Compile `fn` for one device of a target from shapes alone (`jax.ShapeDtypeStruct`s or pytrees of them).

    Raises InputError if the compiler is not installed.
    """
    sharding = jax.sharding.SingleDeviceSharding(devices(target)[0])
    jitted = jax.jit(fn, in_shardings=sharding, out_shardings=sharding)
    with lowering_for(target):
        lowered = jitted.lower(*shapes)
    return lowered.compile(compiler_options=target.options)


def lowering_for(target: Target) -> contextlib.AbstractContextManager:
    """Return a context in which programs are traced and lowered for a target.

    From jax 0.11 on, the lowering of a Pallas kernel needs to know the model of the device, which is absent.
    """
    if target.chip.platform == "cpu":
        return contextlib.nullcontext()
    device = devices(target)[0]
    cores = getattr(device, "core_count", getattr(device, "num_cores", None))
    described = AbstractDevice(device.device_kind, num_cores=cores, platform=target.chip.platform)
    return use_abstract_mesh(AbstractMesh((), (), abstract_device=described))


def present_devices(target: Target) -> list:
    """Return CPU devices, several of them emulated, for tests without the compiler of an accelerator."""
    cpu_devices = jax.devices("cpu")
    if len(cpu_devices) < target.devices:
        raise InputError(
            f"{target.name} needs {target.devices} CPU devices, there are {len(cpu_devices)}: "
            f"set JAX_NUM_CPU_DEVICES={target.devices} and NPROC={2 * target.devices}"
        )
    return cpu_devices[: target.devices]


def _description(target: Target) -> dict:
    """Return the arguments of `get_topology_desc` that describe the target."""
    if target.chip.platform == "cuda":
        return {"topology": f"1x1x{target.devices}", "target_config": target_config(target.chip)}
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # otherwise it queries Google Cloud's metadata server
    size = "x".join(map(str, target.shape))
    host = {} if target.devices > 8 else {"chips_per_host_bounds": [*target.shape, *(1,) * (3 - len(target.shape))]}
    return {"topology_name": f"{target.chip.name}:{size}", **host}


def target_config(chip: Chip) -> str:
    """Format a GPU as XLA's GpuTargetConfigProto, in text format.
    >>> print(target_config(CHIPS["h200"])[:46])
    gpu_device_info { threads_per_block_limit: 102
    """
    device = _proto(COMMON | chip.card)
    name = f'platform_name: "CUDA" device_description_str: "NVIDIA {chip.name.upper()}"'  # as the device calls itself
    return f"gpu_device_info {{ {device} }} {name} dnn_version_info {{ major: 9 minor: 10 patch: 0 }}"


def _proto(fields: dict) -> str:
    """Format fields as a text-format protobuf.
    >>> _proto({"a": 1, "b": {"c": 2}})
    'a: 1 b { c: 2 }'
    """
    return " ".join(
        f"{name} {{ {_proto(value)} }}" if isinstance(value, dict) else f"{name}: {value}"
        for name, value in fields.items()
    )
