"""Accelerators of this machine that JAX does not use."""

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

TPU_DEVICES = {
    "0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076", "0x0083", "0x007c",
}  # fmt: skip
"""PCI device numbers of TPUs from v2 on, as in jax/_src/hardware_utils.py."""
PACKAGES = {"cuda12": ("jax_cuda12_plugin", "jax_cuda13_plugin"), "tpu": ("libtpu",)}
"""{extra of jax: packages with which JAX is no longer for CPUs only}"""


def accelerator_hint(root: Path = Path("/"), environment: Mapping = os.environ) -> str:
    """Return one line about an NVIDIA GPU or a TPU of this machine if JAX is installed for CPUs only, with the command
    that installs the right one; "" if there is none, or if JAX_PLATFORMS selects the CPU.

    Only files of the operating system under `root` are read: no driver is loaded.
    """
    for name, is_present, extra in (("an NVIDIA GPU", has_nvidia_gpu, "cuda12"), ("a TPU", has_tpu, "tpu")):
        if is_present(root) and not any(map(importlib.util.find_spec, PACKAGES[extra])):
            from jax import __version__

            command = f'pip install "jax[{extra}]=={__version__}"'
            unused = environment.get("JAX_PLATFORMS", "") != "cpu"
            return f"this machine has {name}, but the installed jax is for CPUs only: {command}" if unused else ""
    return ""


def has_nvidia_gpu(root: Path) -> bool:
    """Whether NVIDIA's driver shows a GPU; in Windows' Linux (WSL), which shows any GPU, also whether it has
    `nvidia-smi`."""
    has_device_file = any((root / "dev").glob("nvidia[0-9]*"))
    return has_device_file or ((root / "dev" / "dxg").exists() and shutil.which("nvidia-smi") is not None)


def has_tpu(root: Path) -> bool:
    """Whether a device on the PCI bus is one of Google's TPUs."""
    for vendor in (root / "sys" / "bus" / "pci" / "devices").glob("*/vendor"):
        device = vendor.with_name("device")
        if vendor.read_text().strip() == "0x1ae0" and device.read_text().strip() in TPU_DEVICES:
            return True
    return False
