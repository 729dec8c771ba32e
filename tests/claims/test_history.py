"""A recorded number changes only with its run, and a recorded run stays: what the history of the repository says."""

import hashlib
import json
from pathlib import Path

import pytest

from attention_jax.claims import record
from attention_jax.files import read_json
from attention_jax.provenance import git_output

FREEZE = "2351b4c0711e1ad7c1112f04b178b8d0cf1c2c19"
"""Until this commit results were replaced as the code changed (experiments/HISTORY.md)."""


def contents(names: list[str]) -> list[bytes]:
    """The contents of blobs of the repository, by their hashes."""
    return [git_output("cat-file", "blob", name) for name in names]


def load_versions() -> list[tuple[str, dict]]:
    """(experiment, run) of every run in every version of experiments/results/*.json since the freeze."""
    options = ("--format=", "--raw", "--no-abbrev", "--no-renames", "-m", f"{FREEZE}..HEAD")
    log = git_output("log", *options, "--", ":(glob)experiments/results/*.json").decode().splitlines()
    blobs = {(line.split("\t")[1], line.split()[3]) for line in log}
    blobs = sorted((path, blob) for path, blob in blobs if set(blob) != {"0"})
    texts = contents([blob for _, blob in blobs])
    return [(Path(path).stem, run) for (path, _), text in zip(blobs, texts) for run in runs_in(json.loads(text))]


def runs_in(content) -> list[dict]:
    """The runs in the content of a file; none in those of peers and checks."""
    return [run for run in content.get("runs", ()) if "metrics" in run] if isinstance(content, dict) else []


def identity(name: str, run: dict) -> tuple:
    """What a run is called, and when and where it ran."""
    return name, run.get("variant", ""), run["seed"], run.get("date"), run.get("environment", {}).get("commit")


def numbers(run: dict) -> str:
    """What may not change of a run."""
    return json.dumps([run["metrics"], run.get("history"), run.get("diverged")], sort_keys=True)


def test_recorded_number_changes_only_with_its_run():
    if git_output("merge-base", "--is-ancestor", FREEZE, "HEAD") is None:
        pytest.skip("needs the history of the repository: this is a shallow clone, an archive, or git is missing")
    present = [(path.stem, run) for path in record.RESULTS.glob("*.json") for run in runs_in(read_json(path))]
    versions, changed = {identity(*entry): numbers(entry[1]) for entry in present}, set()
    names = {key[:3] for key in versions}
    for name, run in load_versions():
        key, value = identity(name, run), numbers(run)
        assert key[:3] in names, f"{key[:3]} was recorded once and stays, whatever it says: put it back"
        changed |= {key} if versions.setdefault(key, value) != value else set()
    assert len(versions) > 700 and not changed


def test_files_of_the_sources_runs_have_their_hashes():
    """A line for each file in experiments/peers/SHA256SUMS."""
    lines = (record.ROOT / "peers" / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    files = {path.name: path.read_bytes() for path in record.RESULTS.glob("*_peer*.json")}
    assert dict(line.split()[::-1] for line in lines) == {
        name: hashlib.sha256(content).hexdigest() for name, content in files.items()
    }
