"""What the history of the repository says about the record: nothing in it is changed, shrunk or back-dated."""

import dataclasses
import functools
import hashlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from attention_jax.claims import catalog, record, rule
from attention_jax.claims.claim import peer_values
from attention_jax.config import differences, from_json
from attention_jax.config.options import Options, type_from_name
from attention_jax.files import read_json

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ":(glob)experiments/results/*.json"
PEERS = ROOT / "experiments" / "peers" / "SHA256SUMS"
HISTORY = ROOT / "experiments" / "HISTORY.md"
WITH_RESULTS = "05173ba5"
"""The commit that registered ten runs together with their results, before tests looked; HISTORY.md says so."""


def git(*words: str, stdin: bytes = b"") -> bytes:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout


@functools.cache
def is_ancestor(first: str, second: str) -> bool:
    """Whether a commit is an ancestor of another one, or the same."""
    words = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", first, second]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module", autouse=True)
def history():
    if not all(is_ancestor(read_json(path)["commit"], "HEAD") for path in record.REGISTRATIONS):
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


@functools.cache
def versions(*paths: str, since: str = "") -> list[tuple[str, str, bytes]]:
    """(commit, path, content) of every version of files, the oldest commit first; without those that removed a file."""
    revisions = f"{since}..HEAD" if since else "HEAD"
    options = ("--reverse", "--topo-order", "--format=%H", "--raw", "--no-abbrev", "--no-renames", "-m")
    rows, commit = [], ""
    for line in git("log", *options, revisions, "--", *paths).decode().splitlines():
        if line.startswith(":"):
            rows.append((commit, line.split("\t")[1], line.split()[3]))
        elif line:
            commit = line.split()[0]
    rows = [row for row in rows if row[2] != "0" * 40]
    content = blobs(sorted({blob for *_, blob in rows}))
    return [(commit, path, content[blob]) for commit, path, blob in rows]


def runs_in(content) -> list[dict]:
    """The runs in the content of a file; none in those of peers and checks."""
    return [run for run in content.get("runs", ()) if "metrics" in run] if isinstance(content, dict) else []


def numbers(run: dict) -> str:
    """What may not change of a run: its numbers, and the commit that it ran."""
    commit = run.get("environment", {}).get("commit")
    return json.dumps([run["metrics"], run.get("history"), run.get("diverged"), commit], sort_keys=True)


@functools.cache
def first_versions(since: str = "") -> dict[tuple[str, str, int], tuple[str, str]]:
    """{(experiment, variant, seed): (commit, numbers)} where a run was committed first."""
    first = {}
    for commit, path, content in versions(RESULTS, since=since):
        for run in runs_in(json.loads(content)):
            first.setdefault((Path(path).stem, run.get("variant", ""), run["seed"]), (commit, numbers(run)))
    return first


def test_runs_committed_since_the_freeze_stay_recorded():
    """Before it, results were replaced as the code changed (experiments/HISTORY.md)."""
    files = sorted(record.RESULTS.glob("*.json"))
    now = {(f.stem, run.get("variant", ""), run["seed"]): numbers(run) for f in files for run in runs_in(read_json(f))}
    then = first_versions(read_json(record.REGISTRATION)["commit"])
    assert len(then) > 300
    assert sorted(then.keys() - now.keys()) == [], "a run that was recorded once stays: put it back"
    assert [key for key, (_, first) in then.items() if first != now[key]] == [], "a recorded run is not replaced"


def registrations() -> list[tuple[str, str, dict]]:
    """(commit, file name, content) of every version of every registration, wherever it was."""
    paths = [f"experiments/{folder}{path.name}" for path in record.REGISTRATIONS for folder in ("", "registered/")]
    return [(commit, Path(path).name, json.loads(content)) for commit, path, content in versions(*paths)]


def row_key(row: dict) -> tuple[str, str, int]:
    return row["experiment"], row["variant"], row["first_seed"]


def test_registrations_never_shrink():
    """No row leaves, no row loses a seed, and the frozen commit stays."""
    now = {path.name: read_json(path) for path in record.REGISTRATIONS}
    lost = []
    for _, name, then in registrations():
        seeds = {row_key(row): row["seeds"] for row in now[name]["rows"]}
        lost += [f"{name}: {row}" for row in then["rows"] if seeds.get(row_key(row), 0) < row["seeds"]]
        lost += [f"{name}: frozen at {then['commit']}"] if then["commit"] != now[name]["commit"] else []
    assert len(registrations()) > 20 and not lost


def test_registration_precedes_its_first_result():
    """The frozen commit, then the commit that registers the seed, then that of the result."""
    registered = {}
    for commit, _, content in registrations():
        for row in content["rows"]:
            for seed in record.seeds_of_row(row):
                key = (row["experiment"], row["variant"], seed)
                registered.setdefault(key, (content["commit"], commit))
    late, together = [], 0
    for key, (commit, _) in first_versions().items():
        if key in registered:
            frozen, registration = registered[key]
            if commit.startswith(WITH_RESULTS) and registration == commit:
                together += 1
            elif registration == commit or not (
                is_ancestor(registration, commit) and is_ancestor(frozen, registration)
            ):
                late.append(f"{key}: result {commit[:8]}, registered {registration[:8]}")
    assert not late and together == 10


def claim_identity(entry: dict, defaults: dict) -> tuple:
    """What decides the verdict of a claim as its file has it."""
    values = defaults | entry
    names = ("metric", "variant", "also", "minus", "epoch", "best", "last", "published", "peer", "runs", "deviation")
    return tuple(str(values.get(name)) for name in (*names, "rounding", "sign"))


def claims_in(content: bytes) -> dict[str, tuple]:
    """{text: identity} of the claims of a version of NAME.toml."""
    declared = tomllib.loads(content.decode())
    return {entry["text"]: claim_identity(entry, declared.get("defaults", {})) for entry in declared.get("claim", ())}


def test_committed_claims_stay_as_they_are():
    """A claim that leaves or changes is named in HISTORY.md, as `NAME`: TEXT, with the reason."""
    now = {path.name: claims_in(path.read_bytes()) for path in catalog.ROOT.glob("*.toml")}
    page = HISTORY.read_text(encoding="utf-8")
    changed = set()
    for _, path, content in versions(":(glob)experiments/*.toml"):
        name = Path(path).name
        if name != "findings.toml":  # what it was before claims were data
            then = claims_in(content)
            changed |= {(name, text) for text, key in then.items() if now.get(name, {}).get(text) != key}
    silent = [f"`{Path(name).stem}`: {text}" for name, text in sorted(changed)]
    assert [line for line in silent if line not in page] == []


@functools.cache
def runs_of_claim(name: str, variants: frozenset) -> dict[tuple[str, int], str]:
    """{(variant, seed): first commit} of the runs of these variants, under any of their names."""
    former = catalog.load_experiment(name).former_variants
    return {
        (variant, seed): commit
        for (experiment, variant, seed), (commit, _) in first_versions().items()
        if experiment == name and former.get(variant, variant) in variants
    }


def claim_of_row(row: dict) -> tuple:
    """What decides the verdict of a claim that a row of a registration has: numbers of the source and their margin."""
    declared, source = row["claim"], row["claim"]["source"]
    keys = (source["notebook"], source["statistic"], "learning_rate", source["learning_rate"])
    runs = peer_values(record.RESULTS / source["file"], keys, {})
    return row["variant"], declared["metric"], declared["best"], declared["published"], runs, declared["margin"]


def had_claim(commit: str, name: str, text: str) -> bool:
    """Whether the experiment had the claim at a commit as it is now."""
    then = claims_in(git("show", f"{commit}:experiments/{name}.toml"))
    return then.get(text) == claims_in((catalog.ROOT / f"{name}.toml").read_bytes())[text]


def seeds_of_registration(path: Path, name: str, variant: str) -> set[int]:
    """The seeds of a variant of an experiment in a registration."""
    rows = [row for row in record.load_rows(path) if (row["experiment"], row["variant"]) == (name, variant)]
    return {seed for row in rows for seed in record.seeds_of_row(row)}


def has_claim(path: Path, claim) -> bool:
    """Whether a row of a registration has the claim; none has an order, which has no number."""
    if claim.published is None:
        return False
    largest = round(rule.margin(claim.published, claim.runs, claim.deviation, claim.rounding), 4)
    identity = (claim.variant, claim.metric, claim.best, claim.published, claim.runs, largest)
    return identity in [claim_of_row(row) for row in record.load_rows(path) if "claim" in row]


@pytest.mark.parametrize("name", catalog.experiment_names())
def test_registered_claims_precede_every_run_of_their_configuration(name):
    """`registered` is earned: all runs are of seeds that a file registers, which has the claim or froze it."""
    experiment, wrong = catalog.load_experiment(name), []
    for claim in (claim for claim in experiment.claims if claim.registered):
        runs = runs_of_claim(name, frozenset({claim.variant, claim.minus} - {None}))
        for (variant, seed), commit in runs.items():
            paths = [path for path in record.REGISTRATIONS if seed in seeds_of_registration(path, name, variant)]
            frozen = read_json(paths[0])["commit"] if paths else commit
            if commit == frozen or not is_ancestor(frozen, commit):
                wrong.append(f"{claim.text}: {variant}, seed {seed} has no registration before its result")
            elif not has_claim(paths[0], claim) and not had_claim(frozen, name, claim.text):
                wrong.append(f"{claim.text}: neither {paths[0].name} nor {frozen[:8]} has this claim")
    assert not wrong


def test_history_page_only_grows():
    """Each line of an earlier version is still there."""
    now = set(HISTORY.read_text(encoding="utf-8").splitlines())
    lost = {
        line
        for _, _, content in versions("experiments/HISTORY.md")
        for line in content.decode().splitlines()
        if line not in now
    }
    assert not lost


def test_files_of_the_sources_runs_have_their_hashes():
    """A line for each file in experiments/peers/SHA256SUMS, which no commit has changed."""
    sums = {name: digest for digest, name in (line.split() for line in PEERS.read_text().splitlines())}
    files = {path.name: path.read_bytes() for path in record.RESULTS.glob("*_peer*.json")}
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    for _, _, content in versions("experiments/peers/SHA256SUMS"):
        assert all(sums[name] == digest for digest, name in (line.split() for line in content.decode().splitlines()))


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
CLASSES = {"Cct": "CCTConfig", "ConditionalGru": "ConditionalGRUConfig", "Gnmt": "GNMTConfig", "Vit": "ViTConfig"}
"""{class of options at the first freeze: present one}; other classes of models are now called NAMEConfig, and some of
them are in `experiments.papers.options`."""
FORMER = {  # option names at the first freeze: present ones
    "accumulate": "accumulation_steps", "neighbours": "neighbors", "bias": "use_bias",
    "blocks": "blocks_per_stage", "convolutions": "num_conv_layers", "damaged": "on_bad_record",
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
    old_class = values["type"]
    names = (old_class, CLASSES.get(old_class, f"{old_class}Config"))
    kinds = (*names, *(f"{catalog.PAPERS}.options:{name}" for name in names))
    kind = next(name for name in kinds if name in Options.kinds)
    field_names = {field.name for field in dataclasses.fields(type_from_name(kind))}
    name = lambda old: FORMER.get(f"{old_class}.{old}", FORMER.get(old, old))
    is_other = lambda old, value: old == "bias" and isinstance(value, bool)  # use_bias, before there was another bias
    keep = lambda old, value: old in field_names and not is_other(old, value)
    options = {old if keep(old, value) else name(old): present(value) for old, value in values.items()}
    return options | {"type": kind}


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
        experiment = catalog.load_experiment(name)
        now = experiment.variants()[experiment.former_variants.get(variant, variant)]
        if difference := differences(from_json(present(then[name][variant])), now):
            changed[name, variant] = difference
    assert not changed, "a registered run must have the settings that were frozen: add another variant"
