"""A recorded number names its commit, also in a worktree and with packed refs, and its processor."""

import hashlib
import os
import shutil
import subprocess

import pytest

from attention_jax import provenance
from attention_jax.train import log


@pytest.fixture
def repository(tmp_path):
    """A repository of one commit with the file "a"."""
    if not shutil.which("git"):
        pytest.skip("needs git")
    place = tmp_path / "repository"
    place.mkdir()
    (place / "a").write_text("1")
    for words in (["init", "-q"], ["add", "a"], ["commit", "-q", "-m", "first"]):
        run(place, *words)
    return place


def run(place, *words) -> str:
    command = ["git", "-C", str(place), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_commit_with_packed_refs_and_in_worktree(repository, tmp_path):
    head = run(repository, "rev-parse", "HEAD")
    assert provenance.commit(repository) == head and len(head) == 40
    run(repository, "pack-refs", "--all")
    assert not list((repository / ".git" / "refs" / "heads").iterdir()), "the branch has no file of its own any more"
    assert provenance.commit(repository) == head
    run(repository, "worktree", "add", "-q", str(tmp_path / "tree"))
    assert (tmp_path / "tree" / ".git").is_file() and provenance.commit(tmp_path / "tree") == head


def test_changed_or_new_file_makes_tree_dirty(repository):
    paths = ("a", "b")
    assert provenance.changes(repository, paths) == []
    (repository / "a").write_text("2")
    assert provenance.changes(repository, paths) == ["a"]
    (repository / "b").write_text("2")
    assert provenance.changes(repository, paths) == ["a", "b"]
    run(repository, "add", "-A")
    run(repository, "commit", "-q", "-m", "second")
    assert provenance.changes(repository, paths) == []


def test_code_diff_and_file_hash_at_commit(repository):
    first, digest = run(repository, "rev-parse", "HEAD"), hashlib.sha256(b"1").hexdigest()
    assert not provenance.code_differs(first, repository, ("a",))
    (repository / "a").write_text("2")
    run(repository, "commit", "-q", "-a", "-m", "second")
    assert provenance.code_differs(first, repository, ("a",)) and not provenance.code_differs(first, repository, ("b",))
    assert provenance.code_differs("0" * 40, repository, ("a",)), "an unknown commit"
    assert provenance.file_hash(repository / "a", first) == digest != provenance.file_hash(repository / "a")
    assert provenance.file_hash(repository / "a", "0" * 40) is None


def test_recorded_results_are_not_code(repository):
    (repository / "experiments" / "results").mkdir(parents=True)
    (repository / "experiments" / "results" / "x.json").write_text("{}")
    assert provenance.changes(repository) == []
    (repository / "experiments" / "x.py").write_text("")
    assert provenance.changes(repository) == ["experiments/x.py"]


def test_outside_of_a_repository_there_is_no_commit(tmp_path):
    assert provenance.commit(tmp_path) is None and provenance.changes(tmp_path) == []


def test_without_git_there_is_no_commit(repository, monkeypatch):
    monkeypatch.setenv("PATH", str(repository))
    assert provenance.commit(repository) is None and provenance.changes(repository) == []


def test_the_processor_has_a_name_and_vector_instructions(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Abacus 9\nflags\t\t: fpu fma avx2 avx512f sse\n\n")
    assert provenance.processor(cpuinfo) == ("Abacus 9", ["avx512f", "avx2", "fma"])
    monkeypatch.setattr(provenance.platform, "processor", lambda: "")  # as on ARM, where Linux gives no name
    cpuinfo.write_text("Features\t: fp asimd\n")
    assert provenance.processor(cpuinfo) == (None, ["asimd"])
    assert provenance.processor(tmp_path / "none") == (None, [])


def test_environment_names_usable_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    assert log.environment()["machine"].endswith(", 4 CPUs")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1}, raising=False)
    environment = log.environment()
    assert environment["machine"].endswith(", 1 of 4 CPUs") and environment["cores"] == 1
    assert {"commit", "changed", "instructions", "jax"} <= environment.keys()


def test_all_cores_count_without_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert provenance.cores() == 6
    for path in (provenance.ROOT / "attention_jax" / "data").glob("*.py"):
        assert "sched_getaffinity" not in path.read_text(), f"{path.name} asks what macOS does not have"
