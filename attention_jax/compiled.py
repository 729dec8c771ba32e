"""JAX's persistent compilation cache, which the command line uses by default. Standard library only."""

import contextlib
import hashlib
import importlib.metadata
import os
import sys
from pathlib import Path

from attention_jax import provenance

LARGEST = 1 << 30
"""Bytes that all cached programs of this user may take; the oldest go first."""
DECIDED = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")
"""Environment variables by which the user decides about the cache: JAX_ENABLE_COMPILATION_CACHE=false turns it off."""


def keep_compiled_programs():
    """Let JAX keep compiled programs in the user's cache directory, before it is imported.

    A later process loads them instead of compiling them again. Nothing is done where the environment already says what
    JAX's cache is to do (DECIDED), or where the directory cannot be written.
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
    """The directory for files of this user that can be made again: $XDG_CACHE_HOME, or the system's own place."""
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home)
    parts = {"darwin": ("Library", "Caches"), "win32": ("AppData", "Local")}.get(sys.platform, (".cache",))
    return Path(os.path.expanduser("~"), *parts)


def environment_key() -> str:
    """A name for what a compiled program depends on besides its source: the processor with its vector instructions,
    the versions of jax and jaxlib, the flags of XLA and the platform that JAX is to use."""
    versions = [importlib.metadata.version(package) for package in ("jax", "jaxlib")]
    variables = [os.environ.get(name, "") for name in ("XLA_FLAGS", "JAX_PLATFORMS", "LIBTPU_INIT_ARGS")]
    return hashlib.sha256(repr([provenance.processor(), versions, variables]).encode()).hexdigest()[:16]


def trim(root: Path, largest: int):
    """Delete the files under `root` that were used longest ago until at most `largest` bytes are left."""
    found = []
    for path in root.glob("*/*"):
        with contextlib.suppress(OSError):  # another process has deleted it
            facts = path.stat()
            found.append((max(facts.st_atime, facts.st_mtime), facts.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= largest:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size
