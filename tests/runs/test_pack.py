"""A packed run answers from one file, and a damaged or foreign file is refused."""

import io
import json
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
from test_launch import error_line, launch_here

from attention_jax import config as configs, export_run, load_run, train_run
from attention_jax.errors import InputError
from attention_jax.runs import pack, saved

STORED = Path(__file__).parents[1] / "runs" / "date_luong.zip"
"""A run of 2026-11-23, with the option names of 0.1.0 in its config.json."""
SAID = json.loads((STORED.parent / "date_luong.json").read_text(encoding="utf-8"))
"""What it predicted on that day."""


def tiny() -> configs.Config:
    """A translator of dates, as in the kept run."""
    model = configs.LuongSeq2seqConfig(hidden_size=8, embed_size=4)
    train = configs.Train(max_steps=2, steps_per_call=2, total_epochs=1, best_metric="train.loss")
    return configs.Config(
        "dates", configs.Dates(examples=300), model, train=train, decode=configs.Decode(max_length=11)
    )


def test_stored_run_predicts_what_it_did():
    run = load_run(STORED)
    assert run.predict(list(SAID["predictions"])) == list(SAID["predictions"].values())
    total = sum(float(np.abs(x).sum()) for x in jax.tree.leaves(run.params))
    assert total == pytest.approx(SAID["sum of |parameters|"], rel=1e-6) and run.config.name == "dates"


@pytest.mark.slow
def test_packed_run_equals_its_directory(tmp_path):
    texts = ["May 1, 1999", "TUESDAY, SEPTEMBER 25, 1984"]
    run = train_run(tiny(), tmp_path / "run", quiet=True)
    maps = run.attention(texts)[0].predictions[0].attentions[0].weights
    with pytest.raises(InputError, match="--out must be a file that does not exist"):
        pack.write_pack(tmp_path / "run", run.params, tmp_path / "run" / "config.json")
    result = launch_here("export", tmp_path / "run", "--to", "zip")
    assert result.returncode == 0 and f"{tmp_path / 'run.zip'}: " in result.stdout, result.stderr
    (tmp_path / "run").rename(tmp_path / "gone")
    again = load_run(tmp_path / "run.zip")
    assert again.predict(texts) == run.predict(texts) and again.result == run.result
    np.testing.assert_array_equal(again.attention(texts)[0].predictions[0].attentions[0].weights, maps)
    for expected, actual in zip(jax.tree.leaves(run.params), jax.tree.leaves(again.params), strict=True):
        np.testing.assert_array_equal(expected, actual)
    weights, same = (saved.weights_of(tmp_path / name) for name in ("gone", "run.zip"))
    assert weights.options == same.options and weights.arrays.keys() == same.arrays.keys()
    assert launch_here("export", tmp_path / "run.zip").returncode == 0
    assert (tmp_path / "run" / "export" / "own" / "model.safetensors").exists()


def write_zip(place: Path, **files: bytes) -> Path:
    with zipfile.ZipFile(place, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "."), content)
    return place


def test_invalid_packed_run_is_one_line_error(tmp_path):
    (tmp_path / "text.zip").write_text("no zip")
    write_zip(tmp_path / "foreign.zip", config__json=b"{}", evil__py=b"")
    write_zip(tmp_path / "empty.zip")
    whole = STORED.read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    for name in ("text", "foreign", "empty", "cut"):
        assert "is not a packed run" in error_line("predict", tmp_path / f"{name}.zip", "May 1, 1999")
    assert not (tmp_path / "evil.py").exists()
    content = {}
    with zipfile.ZipFile(STORED) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    for name, bad, message in (
        ("weights.safetensors", b"\0" * 20, "weights.safetensors"),
        ("config.json", b'{"format": 99}', "has format 99, this version reads 1"),
    ):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for key, value in (content | {name: bad}).items():
                archive.writestr(key, value)
        (tmp_path / "bad.zip").write_bytes(buffer.getvalue())
        assert message in error_line("predict", tmp_path / "bad.zip", "May 1, 1999")


def test_unfinished_run_cannot_be_packed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(configs.to_json(tiny())))
    with pytest.raises(InputError, match="has not ended"):
        export_run(tmp_path / "run", to="zip")
    assert not (tmp_path / "run.zip").exists()
    with pytest.raises(InputError, match="--out needs a file that ends in .zip"):
        export_run(tmp_path / "run", to="zip", out=tmp_path / "x")


@pytest.mark.parametrize(
    "command", ["evaluate RUN --figures", "export RUN --to zip", "train date_luong --resume --out RUN"]
)
def test_commands_needing_log_reject_packed_runs(command):
    assert "needs the directory of a run" in error_line(*command.replace("RUN", str(STORED)).split())
