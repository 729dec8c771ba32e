"""Several hosts, as processes that know each other through the coordinator alone: one training, the same numbers."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from attention_jax.errors import InputError
from attention_jax.runs import directory as run_directory, saved
from attention_jax.train import hosts

ROOT = Path(__file__).resolve().parents[2]
EPOCHS = 4
SMALL = [
    "--data.examples",
    "200",
    "--model.num-layers",
    "1",
    "--model.hidden-size",
    "16",
    "--model.mlp-dim",
    "16",
    "--train.batch-size",
    "30",
]


LAUNCH = """
import runpy, sys
from attention_jax.train import placement
placement.SHARDED_FROM = 1_000
runpy.run_path("launch.py", run_name="__main__")
"""


def begin(out: Path, devices: int, *arguments: str) -> subprocess.Popen:
    """Train in a process of its own, in which small parameters are large enough to be divided where that is asked."""
    command = [
        sys.executable,
        "-c",
        LAUNCH,
        "train",
        "vit_digits",
        "--out",
        str(out),
        "--train.total-epochs",
        str(EPOCHS),
        *SMALL,
        *arguments,
    ]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def begin_two(out: Path, *arguments: str) -> list[subprocess.Popen]:
    address = free_address()
    return [begin(out, 1, "--coordinator", address, "--hosts", "2", "--host", str(host), *arguments) for host in (0, 1)]


def ends(processes: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    try:
        outputs = [process.communicate(timeout=180) for process in processes]
    finally:
        for process in processes:
            process.kill()  # a stuck one does not listen to anything else
    return [(process.returncode, *text) for process, text in zip(processes, outputs)]


AGREE = """
import json, sys
from attention_jax.train import hosts
host = int(sys.argv[2])
hosts.join(sys.argv[1], 2, host)
hosts.barrier("here")
flags = hosts.any_host(False, host == 1)
print(json.dumps([hosts.is_primary(), hosts.broadcast({"host": host}), flags]))
"""


@pytest.mark.slow
def test_two_hosts_agree_with_the_first():
    command = [sys.executable, "-c", AGREE, free_address()]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    pair = [subprocess.Popen([*command, str(host)], cwd=ROOT, **streams) for host in (0, 1)]
    for host, (code, output, error) in enumerate(ends(pair)):
        assert code == 0, error
        last = output.splitlines()[-1]  # before it speaks the library that connects them
        assert json.loads(last) == [host == 0, {"host": 0}, [False, True]]


@pytest.fixture(scope="module")
def single_host(tmp_path_factory) -> Path:
    """The run of one host with two devices."""
    out = tmp_path_factory.mktemp("one")
    [(code, _, error)] = ends([begin(out, 2)])
    assert code == 0, error
    return out


@pytest.mark.slow
def test_two_hosts_interrupted_and_resumed_equal_one(single_host, tmp_path):
    pair = begin_two(tmp_path / "two", "--train.save-minutes", "1e-9")  # a checkpoint whenever the disk is free
    metrics, patience = tmp_path / "two" / "metrics.jsonl", time.monotonic() + 120
    while time.monotonic() < patience and not (metrics.exists() and metrics.read_text()):
        time.sleep(0.02)
    pair[1].send_signal(signal.SIGTERM)
    for code, out, error in ends(pair):
        assert code == 130 and "is complete; resume with --resume" in error, (code, out, error)
    (code, output, error), (second_code, silence, _) = ends(begin_two(tmp_path / "two", "--resume"))
    assert code == second_code == 0, error
    assert "test.accuracy" in output and "test.accuracy" not in silence  # the first speaks
    compare(single_host, tmp_path / "two")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["step"] for line in lines if "test.loss" not in line] == sorted(
        {line["step"] for line in lines}
    )  # once each
    assert json.loads((tmp_path / "two" / "environment.json").read_text())["processes"] == 2
    assert saved.load_trained(tmp_path / "two")[2].keys() == saved.load_trained(single_host)[2].keys()


@pytest.mark.slow
def test_two_hosts_with_a_sharded_state_equal_one(single_host, tmp_path):
    for code, _, error in ends(begin_two(tmp_path, "--train.shard-parameters")):
        assert code == 0, error
    compare(single_host, tmp_path)
    [(code, _, error)] = ends([begin(tmp_path, 2, "--resume", "--train.total-epochs", str(EPOCHS + 1))])
    assert code == 0, error
    pieces = run_directory.read_result(tmp_path)["history"]
    assert len(pieces) == EPOCHS + 1 and pieces[-1]["step"] == (EPOCHS + 1) * pieces[0]["step"]


def compare(expected: Path, actual: Path):
    """The numbers of both runs at the ends of their epochs are the same."""
    histories = [run_directory.read_result(directory)["history"] for directory in (expected, actual)]
    assert len(histories[0]) == len(histories[1]) == EPOCHS
    for first, second in zip(*histories, strict=True):
        for name in set(first) - {"seconds"}:
            np.testing.assert_allclose(second[name], first[name], rtol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", 2, 0), "HOST:PORT of the first host"),
        (("", 2, 0), "HOST:PORT of the first host"),
        (("127.0.0.1:9000", 1, 0), "at least 2"),
        (("127.0.0.1:9000", 2, 2), "0 to N - 1"),
        (("127.0.0.1:1", 2, 1), "did not answer"),
    ],
)
def test_invalid_host_arguments_are_one_line(arguments, message, monkeypatch):
    monkeypatch.setattr(hosts, "JOINING", 0.1)
    with pytest.raises(InputError, match=message) as error:
        hosts.join(*arguments)
    assert "\n" not in str(error.value)


def test_one_host_agrees_with_itself():
    assert hosts.is_primary() and hosts.broadcast({"loss": 1.5}) == {"loss": 1.5}
    assert hosts.any_host(False, True) == [False, True]
