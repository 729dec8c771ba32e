"""The persistent compilation cache of the command line: its key, its size, and what cannot break it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attention_jax.cli import compilation_cache

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from attention_jax.cli.compilation_cache import keep_compiled_programs
keep_compiled_programs()
import jax, jax.numpy as jnp
seen = []
jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
print(float(jax.jit(lambda x: jnp.sin(x @ x).sum())(jnp.arange(64.0).reshape(8, 8))))
print(seen.count("/jax/compilation_cache/cache_hits"))
"""


@pytest.fixture
def cache_home(monkeypatch, tmp_path):
    """An environment that says nothing about JAX's cache, with a home of its own."""
    for name in (*compilation_cache.DECIDED, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def start_program() -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def read_output(process: subprocess.Popen) -> tuple[float, int]:
    """(the number that the program printed, programs that came from the cache)."""
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    value, hits = out.split()
    return float(value), int(hits)


def entries(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.name.endswith("-cache")]


@pytest.mark.slow
def test_two_processes_and_a_damaged_entry(cache_home):
    """Two fill one cache at once, a third compiles nothing, and what was damaged is compiled again."""
    first, second = [read_output(process) for process in (start_program(), start_program())]
    third = read_output(start_program())
    assert first[0] == second[0] == third[0] and third[1] >= 1
    for path in entries(cache_home):
        path.write_bytes(path.read_bytes()[:20])
    assert read_output(start_program()) == (first[0], 0)


def test_another_flag_version_or_processor_is_another_directory(cache_home, monkeypatch):
    keys = [compilation_cache.environment_key()]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    keys.append(compilation_cache.environment_key())
    monkeypatch.setattr(compilation_cache.importlib.metadata, "version", lambda package: "99.0")
    keys.append(compilation_cache.environment_key())
    monkeypatch.setattr(compilation_cache.provenance, "processor", lambda: ("another", ["avx512f"]))
    keys.append(compilation_cache.environment_key())
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    "name, value", [("JAX_COMPILATION_CACHE_DIR", "/mine"), (compilation_cache.DECIDED[1], "false")]
)
def test_what_the_user_has_decided_stays(cache_home, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    compilation_cache.keep_compiled_programs()
    assert os.environ[name] == value and not cache_home.exists()


def test_unwritable_cache_home_is_ignored(cache_home):
    cache_home.write_text("a file")
    compilation_cache.keep_compiled_programs()
    assert compilation_cache.DECIDED[0] not in os.environ


def test_a_relative_home_is_none(cache_home, monkeypatch):
    """The XDG Base Directory Specification has it ignored: it would be another directory for each working directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert compilation_cache.cache_home().is_absolute()


def test_the_programs_used_longest_ago_go_first(tmp_path):
    for age, name in enumerate("abcd"):
        path = tmp_path / "key" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (1000 - age, 1000 - age))
    compilation_cache.trim(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["a", "b"]
