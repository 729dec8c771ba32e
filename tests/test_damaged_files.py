"""Files that are valid JSON and not what they should be, or no files at all: no traceback, and nobody waits."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from attention_jax.data.image_files import decode
from attention_jax.errors import InputError
from attention_jax.files import read_json
from attention_jax.pretrained import tensors
from attention_jax.report import run_status
from attention_jax.report.curves import read_history
from attention_jax.runs import directory as run_directory
from attention_jax.train.checkpoint import read_params, save_params
from attention_jax.train.log import MetricsLog

ODD = [
    "3",
    "null",
    "[]",
    '"seconds"',
    "{}",
    '{"step": null}',
    '{"step": "1", "seconds": 2}',
    '{"step": 1, "seconds": 2}',
]
ODD += ["[" * 100_000, '{"step": 1, "epoch": 1, "seconds": "a", "train.loss": 1}', '{"step": 1, "train.loss": [1]}']
ROWS = [{"step": 1, "train.loss": 2.0}, {"step": 2, "epoch": 1, "seconds": 1.0, "valid.loss": 1.0}]


@pytest.fixture(params=ODD, ids=lambda line: line[:20])
def directory(request, tmp_path):
    """The directory of a run whose metrics.jsonl has an odd line between two rows and one behind them."""
    lines = [json.dumps(ROWS[0]), request.param, json.dumps(ROWS[1]), request.param]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_status_passes_odd_lines_over(directory):
    run_status.print_status(directory)
    assert run_status.rows_of(directory / "metrics.jsonl") == ROWS


def test_a_plot_names_the_line(directory):
    with pytest.raises(InputError, match="metrics.jsonl, line 2"):
        read_history(directory / "metrics.jsonl")


def test_resumed_run_drops_damaged_log_lines(directory):
    assert run_directory.read_history(directory) == []  # nothing behind a damaged line is trusted
    log = MetricsLog(directory, step=2, epochs=1)
    log.close()
    assert [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()] == ROWS


@pytest.mark.parametrize("name", ["result", "failure", "progress"])
@pytest.mark.parametrize("text", ["[]", "3", "{}", "null", "[" * 100_000])
def test_status_survives_other_files_that_are_odd(tmp_path, name, text, capsys):
    (tmp_path / "config.json").write_text("[]")
    (tmp_path / f"{name}.json").write_text(text)
    run_status.print_status(tmp_path)
    assert str(tmp_path) in capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize("text", ["[]", "3", "null", "[" * 100_000])
def test_non_object_result_is_one_line_error(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(InputError, match="result.json is damaged"):
        run_directory.read_history(tmp_path)


def ends(function, *arguments):
    """What `function` returns or raises; a failure if it is still waiting after 20 seconds."""
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(function, *arguments)
        try:
            return pending.result(timeout=20)
        except TimeoutError:
            for path in arguments:  # a writer lets it end
                os.close(os.open(path, os.O_WRONLY))
            raise


@pytest.mark.parametrize("kind", ["config", "result", "facts"])
def test_pipe_in_run_directory_is_rejected(tmp_path, kind):
    path = tmp_path / f"{kind}.json"
    os.mkfifo(path)
    reads = {
        "config": lambda path: run_directory.read_config(path.parent),
        "result": lambda path: run_directory.read_history(path.parent),
    }
    with pytest.raises(InputError, match=f"{kind}.json must be a file"):
        ends(reads.get(kind, read_json), path)


def test_pipe_named_like_image_is_rejected(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(InputError, match="a.png must be an image file"):
        ends(decode, str(tmp_path / "a.png"))


def test_a_pipe_is_no_file_of_weights(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="one file of weights"):
        ends(tensors.find_file, tmp_path)


@pytest.mark.parametrize("name", ["metrics.jsonl", "progress.json", "samples.txt"])
def test_status_does_not_wait_for_a_pipe(tmp_path, name, capsys):
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / name)
    ends(lambda path: run_status.print_status(path.parent), tmp_path / name)


@pytest.mark.parametrize("name", ["_METADATA", "manifest.ocdbt"])
def test_truncated_parameters_have_one_reason(tmp_path, name):
    save_params(tmp_path / "final", {"a": np.ones(3, np.float32)})
    for path in (tmp_path / "final").rglob(name):
        path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(InputError, match=r"final: it is damaged .* \(a file is incomplete or missing\); delete it"):
        read_params(tmp_path / "final")
