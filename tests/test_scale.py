"""Data larger than memory, and runs that are killed: at the end everything is as if nothing had happened.

The ordinary suite runs a small part. All of it, with the sizes one wants:

    python tests/test_scale.py memory images --gigabytes 4 --limit 2.5      # trains 500 steps and watches the memory
    python tests/test_scale.py memory text --pairs 5000000 --limit 1.5
    python tests/test_scale.py kills images text --kills 10                 # by threads, on one and two hosts
"""

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from attention_jax import load_run

ROOT = Path(__file__).resolve().parents[1]
GIGABYTE = 10**9
TINY = {
    "images": "vit_digits --data.dataset folder --model.num-layers 1 --model.hidden-size 16 --model.mlp-dim 16",
    "text": "transformer_wmt14 --data.tokenizer whitespace --model.num-encoder-layers 1 --model.num-decoder-layers 1 "
    "--model.hidden-size 16 --model.num-heads 2 --model.mlp-dim 16 --train.average-last 0 --decode.beam-size 1 "
    "--data.max-length 64 --data.packing 0",
}


def make_images(directory: Path, total: int, classes: int = 4, distinct: int = 8, side: int = 300) -> list[str]:
    """At least `total` bytes of JPEG files, many of them links to a few; the options that train on them."""
    rng, number, size = np.random.default_rng(0), 0, 0
    for name in "abcdefgh"[:classes]:
        (directory / name).mkdir(parents=True)
        for kind in range(distinct):
            coarse = rng.integers(0, 256, (side // 10, side // 10, 3)).astype(np.uint8)
            picture = np.asarray(Image.fromarray(coarse).resize((side, side))) ^ rng.integers(0, 32, (side, side, 3))
            Image.fromarray(picture.astype(np.uint8)).save(directory / name / f"{kind}.jpg", quality=95)
            size += (directory / name / f"{kind}.jpg").stat().st_size
    while size < total:
        place = directory / "abcdefgh"[number % classes]
        first = place / f"{number // classes % distinct}.jpg"
        os.link(first, place / f"{distinct + number // classes}.jpg")
        size, number = size + first.stat().st_size, number + 1
    return ["--data.path", str(directory)]


def make_text(directory: Path, pairs: int) -> list[str]:
    """So many pairs of sentences of 1 to 40 words of 5,000, the target backwards; the options that train on them."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(0)
    words = np.array([f"{'aeiou'[n % 5]}{n:x}{'tnrs'[n % 4]}" for n in range(5000)], object)
    (directory / "words").write_text("\n".join(words) + "\n")
    with open(directory / "source", "w") as source, open(directory / "target", "w") as target:
        for first in range(0, pairs, 10**5):
            lengths = np.clip(rng.poisson(9, min(10**5, pairs - first)), 1, 40)
            sampled = words[np.minimum(rng.geometric(0.002, lengths.sum()), 5000) - 1]
            for sentence in np.split(sampled, np.cumsum(lengths)[:-1]):
                source.write(" ".join(sentence) + "\n")
                target.write(" ".join(sentence[::-1]) + "\n")
    files = {"source-file": "source", "target-file": "target", "vocabulary-file": "words"}
    return [word for name, file in files.items() for word in (f"--data.{name}", str(directory / file))]


def begin(out: Path, options: list[str], hosts: int = 1) -> list[subprocess.Popen]:
    """A training in a process group of its own: its hosts, each with two devices in all; goes on with what is there."""
    resume = ["--resume"] if (out / "config.json").exists() else []
    command = [sys.executable, "launch.py", "train", *options, "--data.stream", "always", "--out", str(out), *resume]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(2 // hosts), "NPROC": "8"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = []
    for host in range(hosts):
        joined = ["--coordinator", address, "--hosts", str(hosts), "--host", str(host)] if hosts > 1 else []
        with open(out.with_name(f"{out.name}.{host}.log"), "a") as log:
            group = processes[0].pid if processes else 0
            streams = {"stdout": log, "stderr": subprocess.STDOUT, "process_group": group}
            processes.append(subprocess.Popen(command + joined, cwd=ROOT, env=environment, **streams))
    return processes


def group_memory(group: int) -> int:
    """Resident bytes of all processes of a group, but for pages of files, which the system may drop."""
    total = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                resident, files = map(int, (entry / "statm").read_text().split()[1:3])
                total += (resident - files) * os.sysconf("SC_PAGE_SIZE")
        except OSError:  # it has ended
            continue
    return total


def count_rows(out: Path) -> int:
    """Lines of the run's log so far."""
    log = out / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def last_step(out: Path) -> int:
    """The last training step that the run's log knows."""
    log = out / "metrics.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def train_to_end(out: Path, options: list[str], hosts: int = 1) -> list[np.ndarray]:
    """Train to the end; the final parameters."""
    codes = [process.wait() for process in begin(out, options, hosts)]
    assert codes == [0] * hosts, out.with_name(f"{out.name}.0.log").read_text()[-2000:]
    return parameters(out)


def train_with_kills(out: Path, options: list[str], kills: int, hosts: int = 1, seed: int = 0) -> list[np.ndarray]:
    """Train to the end, killed so many times on the way; the final parameters."""
    draw = random.Random(seed)
    for _ in range(kills):
        processes, start_rows = begin(out, options, hosts), count_rows(out)
        while count_rows(out) <= start_rows and processes[0].poll() is None:
            time.sleep(0.02)
        time.sleep(draw.random())
        assert processes[0].poll() is None, "it ended before it was killed: give it more --steps"
        os.killpg(processes[0].pid, signal.SIGKILL)
        for process in processes:
            process.wait()
        time.sleep(0.2)
        assert group_memory(processes[0].pid) == 0, "a process is left"
    return train_to_end(out, options, hosts)


def parameters(out: Path) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(load_run(out).params)]


def options_of(kind: str, data: list[str], steps: int, epochs: int, workers: int) -> list[str]:
    size = {"images": "--data.pixels 16 --model.patch-size 8 --train.batch-size 8 --train.steps-per-call 2"}
    size["text"] = "--data.batch-tokens 600 --data.held-out-fraction 0.02"
    train = f"--train.max-steps {steps} --train.total-epochs {epochs} --data.workers {workers}"
    return [*TINY[kind].split(), *data, *size[kind].split(), *train.split()]


@pytest.mark.slow
def test_killed_run_ends_like_uninterrupted_one(tmp_path):
    options = options_of("images", make_images(tmp_path / "data", 0, 2, 10, 20), 40, 50, workers=1)
    expected = train_to_end(tmp_path / "whole", options)
    assert all(map(np.array_equal, expected, train_with_kills(tmp_path / "killed", options, 1)))


def watch_memory(kind: str, data: list[str], directory: Path, limit: float, steps: int, workers: int):
    """Train on data and say how the resident memory of all processes grew after the first hundred steps."""
    size = {
        "images": "--data.pixels 224 --model.patch-size 32 --train.batch-size 32",
        "text": "--data.batch-tokens 4000",
    }
    train = (
        f"--train.max-steps {steps} --train.total-epochs 100 --data.workers {workers} --data.held-out-fraction 0.0005"
    )
    train = train if kind == "text" else train.rpartition(" --data.held")[0]
    began = time.perf_counter()
    [process] = begin(directory, [*TINY[kind].split(), *data, *size[kind].split(), *train.split()])
    samples, first = [], None
    while process.poll() is None:
        step = last_step(directory)
        first = first or (step and time.perf_counter() - began)
        samples.append((step, group_memory(process.pid)))
        time.sleep(0.2)
    assert process.returncode == 0, directory.with_name(f"{directory.name}.0.log").read_text()[-2000:]
    peak = max(memory for _, memory in samples) / GIGABYTE
    later = [memory / GIGABYTE for step, memory in samples if 100 <= step < steps]  # at the last step it evaluates
    ends = [np.median(window) for window in (later[: len(later) // 4], later[-len(later) // 4 :])]
    print(f"{kind}, {workers} workers: first log after {first:.0f} s, peak {peak:.2f} GB, ", end="")
    print(f"after 100 steps {ends[0]:.3f} GB, at the end {ends[1]:.3f} GB ({100 * (ends[1] / ends[0] - 1):+.1f} %)")
    assert peak <= limit and abs(ends[1] / ends[0] - 1) < 0.05


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["memory", "kills"])
    parser.add_argument("kinds", nargs="+", choices=["images", "text"])
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of JPEG files, for memory")
    parser.add_argument("--pairs", type=int, default=5_000_000, help="of sentences, for memory")
    parser.add_argument("--limit", type=float, default=2.5, help="gigabytes of resident memory, of all processes")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="scale-"))
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": str(directory / "compiled"), "TFDS_DATA_DIR": str(directory / "home")}
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    try:
        for kind in args.kinds:
            if args.what == "memory":
                make = make_images(directory / kind, int(args.gigabytes * GIGABYTE)) if kind == "images" else None
                data = make or make_text(directory / kind, args.pairs)
                for workers in args.workers:
                    watch_memory(kind, data, directory / f"{kind}-{workers}", args.limit, args.steps, workers)
                continue
            data = (
                make_images(directory / kind, 0, 4, 50, 20) if kind == "images" else make_text(directory / kind, 2000)
            )
            for hosts, workers in itertools.product(args.hosts, args.workers):
                out, options = (
                    directory / f"{kind}-{hosts}-{workers}",
                    options_of(kind, data, args.steps, 1000, workers),
                )
                expected = train_to_end(out.with_name(f"{out.name}-whole"), options, hosts)
                same = all(map(np.array_equal, expected, train_with_kills(out, options, args.kills, hosts)))
                print(
                    f"{kind}, {workers} workers, {hosts} hosts, killed {args.kills} times: equal is {same}", flush=True
                )
                assert same
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
