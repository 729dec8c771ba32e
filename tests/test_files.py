"""JSON files: strict readers take them, and numbers that JSON lacks come back."""

import json
import math
from pathlib import Path

import pytest

from attention_jax.errors import InputError
from attention_jax.files import from_json, make_parent, metrics_row, read_json, write_json
from attention_jax.report.run_page import run_page
from attention_jax.runs import directory as run_directory
from attention_jax.sweep import driver
from attention_jax.train.log import MetricsLog


def strictly(text: str):
    """Parse as RFC 8259 has it: `NaN`, `Infinity` and `-Infinity` are no JSON."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


VALUES = {
    "metrics": {"test.loss": math.nan, "a/b~c": math.inf, "test.accuracy": 0.5},
    "history": [{"epoch": 1, "valid.loss": -math.inf}, {"epoch": 2, "valid.loss": 2.0}],
    "none": None,
}


def test_nonfinite_number_is_null_with_its_pointer(tmp_path):
    written = strictly(write_json(tmp_path / "x.json", VALUES).read_text())
    assert written["metrics"] == {"test.loss": None, "a/b~c": None, "test.accuracy": 0.5}
    assert written["history"][0]["valid.loss"] is None
    assert written["not_finite"] == {
        "/metrics/test.loss": "NaN", "/metrics/a~1b~0c": "Infinity", "/history/0/valid.loss": "-Infinity"
    }  # fmt: skip
    back = read_json(tmp_path / "x.json")
    assert math.isnan(back["metrics"].pop("test.loss")) and back.keys() == VALUES.keys()
    assert back["metrics"] == {"a/b~c": math.inf, "test.accuracy": 0.5} and back["none"] is None
    assert back["history"] == VALUES["history"]


def test_bare_nan_of_earlier_versions_is_read(tmp_path):
    (tmp_path / "x.json").write_text('{"metrics": {"test.loss": NaN}}')
    assert math.isnan(read_json(tmp_path / "x.json")["metrics"]["test.loss"])


@pytest.mark.parametrize("places", ['{"/b": "NaN", "/c/d": "NaN"}', "[1]", '{"/a/0": "NaN"}', '{"/a": "much"}', "3"])
def test_damaged_not_finite_list_is_one_line(places, tmp_path):
    (tmp_path / "x.json").write_text(f'{{"a": null, "not_finite": {places}}}')
    with pytest.raises(InputError, match="x.json is damaged"):
        read_json(tmp_path / "x.json")


def test_log_and_page_keep_nonfinite_numbers(tmp_path):
    log = MetricsLog(tmp_path, 0, 0)
    log.write(1, **{"train.loss": math.inf, "valid.loss": math.nan})
    log.close()
    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert strictly(line)["train.loss"] is None
    row = metrics_row(line)
    assert row["train.loss"] == math.inf and math.isnan(row["valid.loss"]) and set(row) == {
        "step", "train.loss", "valid.loss"
    }  # fmt: skip
    assert metrics_row('{"step": 1, "train.loss": null}') is None, "not of this package"
    write_json(tmp_path / "result.json", VALUES)
    assert "| metrics.test.loss | nan |" in run_page(tmp_path).read_text()


def test_json_without_such_numbers_is_as_before():
    assert from_json('{"step": 3, "train.loss": 0.5}') == {"step": 3, "train.loss": 0.5}


def deep(directory: Path, size: int) -> Path:
    """A path of `size` bytes below a directory, of names that a file system takes."""
    while len(str(directory)) < size - 201:
        directory = directory / ("d" * 200)
    return directory / ("e" * (size - len(str(directory)) - 1))


@pytest.mark.parametrize("size", [4000, 4095])
def test_too_long_directory_path_is_rejected_early(size, tmp_path):
    assert len(str(deep(tmp_path, size))) == size
    for refuse in (
        lambda: run_directory.create_directory(deep(tmp_path, size)),
        lambda: driver.sweep(None, deep(tmp_path, size)),
    ):
        with pytest.raises(InputError, match=f"has {size}: give a shorter one") as error:
            refuse()
        assert len(str(error.value)) < 400 and not list(tmp_path.iterdir())
    run_directory.create_directory(deep(tmp_path, 3600))


def test_the_length_is_that_of_the_absolute_path(tmp_path, monkeypatch):
    """Which orbax uses: a short relative path can be too long."""
    base = deep(tmp_path, 3900)
    base.mkdir(parents=True)
    monkeypatch.chdir(base)
    with pytest.raises(InputError, match="give a shorter one"):
        run_directory.create_directory(Path("run"))


@pytest.mark.parametrize("length", [199, 200, 250, 255])
def test_longest_file_name_is_accepted(length, tmp_path):
    path = tmp_path / ("n" * (length - 5) + ".json")
    make_parent(path, "--out")
    assert read_json(write_json(path, {"a": 1})) == {"a": 1} and [each.name for each in tmp_path.iterdir()] == [
        path.name
    ]


def test_too_long_file_name_is_rejected_early(tmp_path):
    with pytest.raises(InputError, match="give a shorter one"):
        make_parent(tmp_path / "new" / ("n" * 256), "--out")
