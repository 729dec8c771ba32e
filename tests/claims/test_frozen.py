"""No recorded run leaves the record, and what is registered is run with the settings that were frozen."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from attention_jax.claims import catalog, record
from attention_jax.config import differences, from_json
from attention_jax.config.options import type_from_name
from attention_jax.files import read_json

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ":(glob)experiments/results/*.json"


def git(*words: str, stdin: bytes = b"") -> bytes:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout


@pytest.fixture(scope="module", autouse=True)
def history():
    frozen = [read_json(path)["commit"] for path in record.REGISTRATIONS]
    is_ancestor = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor"]
    if any(
        subprocess.run([*is_ancestor, commit, "HEAD"], capture_output=True, check=False).returncode for commit in frozen
    ):
        pytest.skip("needs the history of the repository since the freeze: this is a shallow clone, or no clone")


def blobs(names: list[str]) -> dict[str, bytes]:
    """The contents of blobs, by name."""
    out, contents, at = git("cat-file", "--batch", stdin="\n".join(names).encode()), {}, 0
    while at < len(out):
        end = out.index(b"\n", at)
        name, _, size = out[at:end].split()
        at = end + 2 + int(size)
        contents[name.decode()] = out[end + 1 : at - 1]
    return contents


def numbers_since_commit(frozen: str) -> dict[tuple, set[str]]:
    """The numbers of every run in any version of the recorded results at or after a commit, by experiment, variant and
    seed."""
    log = git("log", "--format=", "--raw", "--no-abbrev", "--no-renames", "-m", f"{frozen}..HEAD", "--", RESULTS)
    changed = [(line.split("\t")[1], line.split()[2:4]) for line in log.decode().splitlines() if line]
    content, numbers_by_run = blobs(sorted({name for _, pair in changed for name in pair} - {"0" * 40})), {}
    for path, name in sorted({(path, name) for path, pair in changed for name in pair}):
        for run in runs_in(json.loads(content.get(name, b"{}"))):
            numbers_by_run.setdefault((Path(path).stem, run.get("variant", ""), run["seed"]), set()).add(numbers(run))
    return numbers_by_run


def runs_in(content) -> list[dict]:
    """The runs in the content of a file; none in those of peers and checks."""
    return [run for run in content.get("runs", ()) if "metrics" in run] if isinstance(content, dict) else []


def numbers(run: dict) -> str:
    return json.dumps([run["metrics"], run.get("history"), run.get("diverged")], sort_keys=True)


def test_runs_committed_since_the_freeze_stay_recorded():
    """Before it, results were replaced as the code changed (docs/replication.md)."""
    files = sorted(record.RESULTS.glob("*.json"))
    now = {(f.stem, run.get("variant", ""), run["seed"]): numbers(run) for f in files for run in runs_in(read_json(f))}
    then = numbers_since_commit(read_json(record.REGISTRATION)["commit"])
    assert len(then) > 300
    assert sorted(then.keys() - now.keys()) == [], "a run that was recorded once stays: put it back"
    assert [key for key, versions in then.items() if versions != {now[key]}] == [], "a recorded run is not replaced"


DUMP = """
import json, sys
try:
    from attention_jax.claims import catalog
except ImportError:  # its name in 2026
    from attention_jax import catalogue as catalog
from attention_jax.config import to_json
every = {name: catalog.load_experiment(name).variants() for name in sys.argv[1:]}
json.dump({name: {v: to_json(c) for v, c in some.items()} for name, some in every.items()}, sys.stdout)
"""
FORMER = {  # option names at the first freeze: present ones
    "bias": "use_bias", "blocks": "blocks_per_stage", "convolutions": "num_conv_layers", "damaged": "on_bad_record",
    "decoder_layers": "num_decoder_layers", "encoder_layers": "num_encoder_layers", "ffn": "mlp_dim",
    "ffn_dropout": "mlp_dropout", "fewest": "min_points", "groups": "num_groups", "handover": "context_input",
    "heads": "num_heads", "held_out_share": "held_out_fraction", "key_width": "key_dim", "layers": "num_layers",
    "locations": "num_locations", "longest": "max_length", "mlp_size": "mlp_dim", "most": "max_points",
    "nodes": "num_nodes", "position": "position_embedding", "positions": "position_embedding",
    "read_heads": "num_read_heads", "registers": "num_registers", "rep_width": "pre_logits_dim",
    "rows_of": "concatenated_pairs", "shifts": "num_shifts", "start_from": "decoder_init", "states": "num_states",
    "steps": "sequence_length", "tied": "tied_embeddings", "train_share": "train_fraction", "value_width": "value_dim",
    "widest": "max_width", "width": "hidden_size", "write_heads": "num_write_heads",
    "Convolutional.positions": "max_length", "NTM.width": "word_size", "Train.start_from": "init_weights",
}  # fmt: skip


def present(values):
    """The options of a frozen configuration by their present names."""
    if not isinstance(values, dict):
        return values
    field_names = {field.name for field in dataclasses.fields(type_from_name(values["type"]))}
    name = lambda old: FORMER.get(f"{values['type']}.{old}", FORMER.get(old, old))
    return {old if old in field_names else name(old): present(value) for old, value in values.items()}


@pytest.mark.parametrize("path", record.REGISTRATIONS, ids=lambda path: path.stem)
def test_registered_configurations_equal_the_frozen_ones(path, tmp_path):
    """Options that were added since have their defaults, which change nothing. One process without JAX: 0.3 s."""
    frozen, rows = read_json(path)["commit"], record.load_rows(path)
    code = git("archive", frozen, "attention_jax", "experiments", "launch.py", ":!experiments/results")
    subprocess.run(["tar", "x", "-C", str(tmp_path)], input=code, check=True)
    names = sorted({row["experiment"] for row in rows})
    process = subprocess.run([sys.executable, "-c", DUMP, *names], cwd=tmp_path, capture_output=True, check=True)
    then, changed = json.loads(process.stdout), {}
    for row in rows:
        name, variant = row["experiment"], row["variant"]
        now = catalog.load_experiment(name).variants()[variant]
        if difference := differences(from_json(present(then[name][variant])), now):
            changed[name, variant] = difference
    assert not changed, "a registered run must have the settings that were frozen: add another variant"
