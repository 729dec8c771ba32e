"""JAX's persistent compilation cache, which the command line uses by default. Standard library only."""

import contextlib
import hashlib
import importlib.metadata
import os
from pathlib import Path

from attention_jax import provenance

LARGEST = 1 << 30
"""Bytes that all cached programs of this user may take; the oldest go first."""
DECIDED = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")
"""Environment variables that configure JAX's cache: JAX_ENABLE_COMPILATION_CACHE=false turns it off."""


def keep_compiled_programs():
    """Enable JAX's persistent compilation cache in the user's cache directory, before JAX is imported.

    Nothing is done if the environment configures JAX's cache (DECIDED), or if the directory cannot be written.
    """
    if any(name in os.environ for name in DECIDED):
        return
    directory = cache_home() / "attention_jax" / "compiled" / environment_key()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:  # a read-only or full home
        return
    if os.access(directory, os.W_OK):
        trim(directory.parent, LARGEST)
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": str(directory),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }


def cache_home() -> Path:
    """Return the user's cache directory: $XDG_CACHE_HOME if it is absolute, or ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.cache"))


def environment_key() -> str:
    """Return a key for the environment of compiled programs: the processor with its vector instructions, the versions
    of jax and jaxlib, the flags of XLA, and JAX's platform."""
    versions = [importlib.metadata.version(package) for package in ("jax", "jaxlib")]
    variables = [os.environ.get(name, "") for name in ("XLA_FLAGS", "JAX_PLATFORMS", "LIBTPU_INIT_ARGS")]
    return hashlib.sha256(repr([provenance.processor(), versions, variables]).encode()).hexdigest()[:16]


def trim(root: Path, largest: int):
    """Delete the least recently used files under `root` until at most `largest` bytes are left."""
    entries = []
    for path in root.glob("*/*"):
        with contextlib.suppress(OSError):  # another process has deleted it
            stat = path.stat()
            entries.append((max(stat.st_atime, stat.st_mtime), stat.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= largest:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size
