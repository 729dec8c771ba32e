"""Provenance of a number: the commit, whether the working tree was clean, the experiment's file, the processor."""

import contextlib
import hashlib
import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NO_CODE = ("experiments/results", "experiments/HISTORY.md")
CODE = ("attention_jax", "experiments", "launch.py", *(f":!{path}" for path in NO_CODE))
"""Git pathspecs of the code that numbers depend on, without recorded results."""
INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "fma", "sve", "asimd")
"""Vector instructions that make results differ in the last digits, the widest first, as Linux names them."""


def git_output(*words: str, directory: Path = ROOT) -> bytes | None:
    """Return the output of a git command; None without git, outside of a repository, or if the command fails."""
    with contextlib.suppress(OSError):
        ended = subprocess.run(["git", "-C", str(directory), *words], capture_output=True, check=False)
        return ended.stdout if ended.returncode == 0 else None
    return None


def git(*words: str, directory: Path = ROOT) -> str | None:
    """Return the output of a git command as text, without the final newline; None where `git_output` gives None."""
    output = git_output(*words, directory=directory)
    return None if output is None else output.decode().rstrip("\n")


def commit(directory: Path = ROOT) -> str | None:
    """The commit that is checked out, also in a worktree and with packed refs; None outside of a repository."""
    top = git("rev-parse", "--show-toplevel", directory=directory)
    installed = (
        directory == ROOT and top is not None and Path(top).resolve() != ROOT
    )  # a package inside of another repository
    return None if top is None or installed else git("rev-parse", "HEAD", directory=directory)


def changes(directory: Path = ROOT, paths: tuple[str, ...] = CODE) -> list[str]:
    """Files that differ from the commit or are not in it; [] for a clean tree, and outside of a repository."""
    if commit(directory) is None:
        return []
    status = git("status", "--porcelain", "--untracked-files=all", "--", *paths, directory=directory) or ""
    return [line[3:] for line in status.splitlines()]


def code_differs(since: str, directory: Path = ROOT, paths: tuple[str, ...] = CODE) -> bool:
    """Whether the code of the checked-out commit differs from that of the commit `since`, or `since` is unknown."""
    return git("diff", "--quiet", since, "HEAD", "--", *paths, directory=directory) is None


def file_hash(path: Path, at: str | None = None) -> str | None:
    """The SHA-256 of a file in hexadecimal: of the file on disk, or of its content in the commit `at`.

    None if the repository of the file does not have that commit, or the commit does not have the file.
    """
    content = git_output("show", f"{at}:./{path.name}", directory=path.parent) if at else path.read_bytes()
    return None if content is None else hashlib.sha256(content).hexdigest()


def cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str | None, list[str]]:
    """Return the processor's name, or None if it is unknown, and those of INSTRUCTIONS that it has."""
    values = {}
    with contextlib.suppress(OSError):
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        values = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = values.get("flags", values.get("Features", "")).split()
    return values.get("model name") or platform.processor() or None, [i for i in INSTRUCTIONS if i in flags]
