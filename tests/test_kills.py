"""A streamed training that is killed with its reading process: at the end everything is as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from attention_jax import load_run

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = (
    "vit_digits --data.dataset folder --data.stream always --data.workers 1 --data.pixels 16 --model.num-layers 1 "
    "--model.hidden-size 16 --model.mlp-dim 16 --model.patch-size 8 --train.batch-size 8 --train.steps-per-call 2 "
    "--train.max-steps 40 --train.total-epochs 50"
)


def make_images(directory: Path):
    """Two classes of ten images of 20 x 20 pixels."""
    rng = np.random.default_rng(0)
    for name in "ab":
        (directory / name).mkdir(parents=True)
        for number in range(10):
            pixels = rng.integers(0, 256, (20, 20, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(directory / name / f"{number}.png")


def start(out: Path, *words: str) -> subprocess.Popen:
    """A training on two devices, in a process group of its own."""
    data = ["--data.path", str(out.parent / "data"), "--out", str(out)]
    command = [sys.executable, "launch.py", "train", *OPTIONS.split(), *data, *words]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2", "NPROC": "8"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, process_group=0)


def processes_of(group: int) -> list[int]:
    """The processes of a group that have not ended; a zombie has no memory."""
    members = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(entry.name)) == group and (entry / "statm").read_text().split()[0] != "0":
                members.append(int(entry.name))
        except OSError:  # it has just ended
            continue
    return members


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_run_ends_like_uninterrupted_one(tmp_path):
    make_images(tmp_path / "data")
    assert start(tmp_path / "whole").wait() == 0
    process, log = start(tmp_path / "killed"), tmp_path / "killed" / "metrics.jsonl"
    while not (log.exists() and log.stat().st_size) and process.poll() is None:
        time.sleep(0.02)
    assert process.poll() is None, "it ended before it was killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.2)
    assert processes_of(process.pid) == []
    assert start(tmp_path / "killed", "--resume").wait() == 0
    whole, killed = (jax.tree.leaves(load_run(tmp_path / name).params) for name in ("whole", "killed"))
    assert all(map(np.array_equal, whole, killed))
