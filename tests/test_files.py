"""Files: strict readers take JSON, numbers that it lacks come back, and no error of a disk leaves half a file."""

import contextlib
import errno
import json
import math
import os
from pathlib import Path

import pytest

from attention_jax.errors import InputError, explain_errors
from attention_jax.files import check_output, from_json, metrics_row, read_json, temporary_file, write_json
from attention_jax.report.run_page import run_page
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


def test_longest_file_name_is_accepted(tmp_path):
    path = tmp_path / ("n" * 250 + ".json")
    check_output(path, "file")
    assert read_json(write_json(path, {"a": 1})) == {"a": 1} and [each.name for each in tmp_path.iterdir()] == [
        path.name
    ]


def test_failed_write_names_file_and_leaves_nothing(tmp_path):
    write_json(tmp_path / "x.json", "old")
    with pytest.raises(InputError, match=r"x.json could not be .*written \(No space left"), explain_errors():
        write_half(tmp_path / "x.json")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"] and (tmp_path / "x.json").read_text() == '"old"\n'


def write_half(path: Path):
    """Half a file, then an error as a file that is open raises it on a full disk: without a name."""
    with temporary_file(path) as temporary_path:
        temporary_path.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "number, advice",
    [
        (errno.ENOSPC, "free disk space"),
        (errno.EDQUOT, "free disk space"),
        (errno.EACCES, "make it accessible"),
        (errno.ESTALE, "--resume if it was training"),
    ],
)
def test_file_system_errors_name_the_file(number, advice):
    with pytest.raises(InputError, match=rf"checkpoints/4 .*\({os.strerror(number)}\): .*{advice}"), explain_errors():
        raise OSError(number, os.strerror(number), "checkpoints/4")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EBADF, errno.EPIPE])
def test_a_defect_keeps_its_traceback(number):
    with pytest.raises(OSError, match=os.strerror(number)) as raised, explain_errors():
        raise OSError(number, os.strerror(number), "ours.json")
    assert not isinstance(raised.value, InputError)


PLACES = {
    ("file", "new.csv"): "",
    ("file", "new/deep/new.csv"): "",
    ("file", "pipe"): "",
    ("file", "table.csv"): "it exists already, and --force",
    ("file", "link.csv"): "it exists already",
    ("file", "full"): "it must be a file, and is a directory",
    ("file", "new/"): "it must be a file, and is a directory",
    ("file", "table.csv/x.csv"): "table.csv is not a directory that can be written",
    ("directory", "new"): "",
    ("directory", "empty"): "",
    ("directory", "to_empty"): "",
    ("directory", "full"): r"must be new or empty, and has notes.txt \(1 of",
    ("directory", "to_full"): "must be new or empty",
    ("directory", "table.csv"): "must be a directory, and is a file",
    ("directory", "table.csv/x"): "not a directory that can be written",
    ("directory", "pipe"): "must be a directory",
    ("directory", "."): "must be new or empty",
    ("directory", "/"): "must be new or empty",
    ("directory", "~"): "did not replace its ~, write /",
    ("file", "~/x.csv"): "did not replace its ~",
    ("directory", chr(0xDCE9)): "must be UTF-8",
}


@pytest.mark.parametrize("kind, name", PLACES)
def test_output_never_replaces_what_is_there(kind, name, tmp_path, monkeypatch):
    """Before anything is written; a place is named as it is typed, from the working directory."""
    monkeypatch.chdir(tmp_path)
    for directory in ("empty", "full"):
        Path(directory).mkdir()
        Path(f"to_{directory}").symlink_to(directory)
    Path("full/notes.txt").write_text("mine"), Path("table.csv").write_text("mine")
    Path("link.csv").symlink_to("table.csv"), os.mkfifo("pipe")
    first_files = sorted(tmp_path.rglob("*"))
    problem = PLACES[kind, name]
    with pytest.raises(InputError, match=problem) if problem else contextlib.nullcontext():
        check_output(name, kind)
    check_output("table.csv", "file", force=True)
    assert sorted(tmp_path.rglob("*")) == first_files


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_read_only_directory_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    for kind in ("file", "directory"):
        with pytest.raises(InputError, match="not a directory that can be written"):
            check_output(tmp_path / "x", kind)
    tmp_path.chmod(0o700)


def test_link_to_output_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    for target in ("real/new.json", "real/old.json"):
        link = tmp_path / Path(target).name
        link.symlink_to(target)
        (tmp_path / "real" / "old.json").write_text("1")
        write_json(link, 2)
        assert link.is_symlink() and (tmp_path / target).read_text() == "2\n"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_json(tmp_path / "pipe", 3)
    assert os.read(reader, 9) == b"3\n" and (tmp_path / "pipe").is_fifo(), "a device is written to, not replaced"
    os.close(reader)
