"""What `reproduce` tells of new runs: beside the recorded ones, variant by variant, and where they are."""

import json

import pytest

from attention_jax.cli import commands
from attention_jax.report.tables import Table, plain, split_columns

MINE = """
from attention_jax.config import Config, Dates, LuongSeq2seqConfig, replace


def config():
    return Config("mine", Dates(), LuongSeq2seqConfig())


def variants():
    return {"first": config(), "second": replace(config(), **{"model.hidden_size": 4})}


def study(config, directory):
    return {"test.accuracy": (0.75 if config.model.hidden_size > 4 else 0.25) + config.train.seed / 1000}


def figure(runs, path):
    path.write_text(" ".join(f"{name} {len(some)}" for name, some in runs.items()))
    return path
"""

CLAIMS = """
[defaults]
metric = "test.accuracy"
variant = "first"
source = "me"

[[claim]]
text = "the first is high"
published = 0.8

[[claim]]
text = "and better"
minus = "second"
sign = 1
"""


def test_unrecorded_rerun_is_shown_next_to_record(tmp_path, capsys, monkeypatch):
    """The first variant was recorded with 0.6; now it has 0.75 and 0.751, and the second 0.5 less."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "mine.toml").write_text(CLAIMS)
    (tmp_path / "results").mkdir()
    recorded = {"variant": "first", "seed": 0, "metrics": {"test.accuracy": 0.6}, "history": []}
    (tmp_path / "results" / "mine.json").write_text(json.dumps({"experiment": "mine", "runs": [recorded]}))
    original = (tmp_path / "results" / "mine.json").read_bytes()
    with pytest.raises(SystemExit) as stop:
        commands.reproduce([str(tmp_path / "mine.py"), "--no-record", "--seeds", "2", "--root", str(tmp_path / "runs")])
    lines = capsys.readouterr().out.splitlines()
    assert stop.value.code == 1 and (tmp_path / "results" / "mine.json").read_bytes() == original
    directory = tmp_path / "runs" / "full" / "mine"
    assert [line for line in lines if str(directory) in line and line.startswith("mine")] == [
        *(
            f"mine {name} seed {seed}: in {directory / f'{name}-seed{seed}'}"
            for name in ("first", "second")
            for seed in (0, 1)
        ),
        f"mine: {directory / 'mine.png'}",
    ]
    assert (directory / "mine.png").read_text() == "first 2 second 2"
    [first] = [line for line in lines if line.startswith("the first is high")]
    assert " ".join(first.split()[4:]) == "0.8 0.6 0.7505 +- 0.00071 (2) -5.0 +- 1.1 points differs"
    [second] = [line for line in lines if line.startswith("and better")]
    assert " ".join(second.split()[2:]) == "more - 0.5 +- 0 (2) 0.5 +- 0 same sign"


def test_wide_table_is_split_to_terminal_width():
    names = tuple(f"valid.metric_{number}" for number in range(12))
    table = Table("x", ("variant", *names), [("a long name", *map(str, range(12))), ("b", *map(str, range(12)))])
    pieces = split_columns(table, 60)
    assert sum((piece.columns[1:] for piece in pieces), ()) == names and all(
        piece.columns[0] == "variant" for piece in pieces
    )
    assert max(len(line) for piece in pieces for line in plain(piece).splitlines()) <= 60
    assert [len(piece.rows) for piece in pieces] == [2] * len(pieces)
