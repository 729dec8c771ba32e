"""Executors, which train groups of runs: in this process, in worker processes, or as Ray tasks on many machines.

An executor takes the files of groups and yields each one when it is finished. `slots` is the number of groups that it
trains at a time. Only `worker.run_group` imports JAX.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from attention_jax.errors import InputError, Interrupted
from attention_jax.runs import directory as run_directory
from attention_jax.sweep import worker

ROOT = Path(__file__).resolve().parents[2]
ATTEMPTS = 3
"""The number of starts of a group whose worker is killed, before its runs are recorded as failed."""


def executor(jobs: int, address: str):
    """Return the executor: Ray if there is an address, worker processes for a number of jobs, else this process."""
    if jobs < 0 or (address and jobs):
        raise InputError(
            f"--jobs must be at least 0 and is for this machine, --ray for a cluster: give one of them; got {jobs}"
        )
    return Ray(address) if address else Subprocesses(jobs) if jobs else InProcess()


class InProcess:
    """Executor that trains one group after another in this process."""

    slots = 1

    def run(self, paths: Sequence[Path]) -> Iterator[Path]:
        for path in paths:
            worker.run_group(path)
            yield path

    def close(self):
        pass


def devices() -> list[str]:
    """The GPUs of this machine, by the names CUDA_VISIBLE_DEVICES uses; [] without any."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    return sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))


def shares(jobs: int, gpus: Sequence[str]) -> list[dict[str, str]]:
    """Return the environment of each of `jobs` workers: whole devices if there are enough, else a fraction of the
    memory of one.

    >>> shares(2, ["0", "1", "2"])
    [{'CUDA_VISIBLE_DEVICES': '0,2'}, {'CUDA_VISIBLE_DEVICES': '1'}]
    >>> shares(2, ["0"])[1]
    {'CUDA_VISIBLE_DEVICES': '0', 'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.45'}
    >>> shares(2, [])
    [{}, {}]
    """
    if not gpus:
        return [{} for _ in range(jobs)]
    if jobs <= len(gpus):
        return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[job::jobs])} for job in range(jobs)]
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / -(-jobs // len(gpus)):.2f}"}
    return [{"CUDA_VISIBLE_DEVICES": gpus[job % len(gpus)], **memory} for job in range(jobs)]


def environment() -> dict[str, str]:
    """PYTHONPATH with this package, for workers."""
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


class Subprocesses:
    """`jobs` worker processes at a time, which share the GPUs. Their warnings are passed on."""

    def __init__(self, jobs: int):
        self.slots = jobs

    def run(self, paths: Sequence[Path]) -> Iterator[Path]:
        waiting, attempts, log_lengths = list(paths), dict.fromkeys(paths, 0), {path: len(_log(path)) for path in paths}
        free, running = shares(self.slots, devices()), {}
        try:
            while waiting or running:
                while waiting and free:
                    path, share = waiting.pop(0), free.pop(0)
                    running[path] = (self._start(path, share), share)
                    attempts[path] += 1
                for path in [path for path, (process, _) in running.items() if process.poll() is not None]:
                    process, share = running.pop(path)
                    free.append(share)
                    log, code = _log(path), process.returncode
                    for line in log[log_lengths[path] :]:
                        if line.startswith("warning:"):
                            print(f"{line} ({path.with_suffix('.log')})", file=sys.stderr, flush=True)
                    log_lengths[path] = len(log)
                    if code == 130:
                        raise KeyboardInterrupt
                    if code == 2:
                        raise InputError(_last_line(path).removeprefix("error: "))
                    if code and attempts[path] < ATTEMPTS:
                        waiting.append(path)
                        continue
                    if code:
                        give_up(path, f"its worker ended {ATTEMPTS} times with exit code {code}: {_last_line(path)}")
                    yield path
                time.sleep(0.05)
        finally:
            for process, _ in running.values():
                process.terminate()
            for process, _ in running.values():
                process.wait()

    def _start(self, path: Path, share: dict[str, str]) -> subprocess.Popen:
        command = [sys.executable, "-m", "attention_jax.sweep.worker", str(path)]
        with path.with_suffix(".log").open("a") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | share | environment())

    def close(self):
        pass


def _log(path: Path) -> list[str]:
    """The lines that the workers of a group have printed."""
    log = path.with_suffix(".log")
    return log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []


def _last_line(path: Path) -> str:
    return (_log(path) or ["it said nothing"])[-1]


def give_up(path: Path, reason: str):
    """Record all unfinished runs of a group as failed."""
    for _, directory in worker.read(path).members:
        if not run_directory.has_ended(directory):
            run_directory.record_failure(directory, RuntimeError(reason))


class Ray:
    """Executor with one Ray task for each group; all machines must share the sweep's directory under the same path.

    A task has its machine's CPUs or one GPU. When a machine dies, its tasks start again on another one and resume from
    their checkpoints.
    """

    def __init__(self, address: str):
        try:
            import ray
        except ImportError:
            raise InputError("--ray needs Ray, which is not installed: pip install ray") from None
        self.ray = ray
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        try:
            if colon:  # Ray would retry an unreachable address for a minute
                socket.create_connection((host, int(port)), timeout=5).close()
            quiet = {"log_to_driver": False, "logging_level": "error"}
            ray.init(address=address, runtime_env={"env_vars": environment()}, **quiet)
        except (OSError, RuntimeError, ValueError) as error:
            message = " ".join(str(error).split())[:120]
            raise InputError(
                f"no Ray cluster answers at {address} ({message}); --ray needs HOST:PORT of a running one, or auto: "
                "start one with ray start --head"
            ) from None
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        gpus = int(sum(node.get("GPU", 0) for node in nodes))
        self.slots = max(1, gpus or len(nodes))
        self.resources = {"num_gpus": 1} if gpus else {"num_cpus": min((node["CPU"] for node in nodes), default=1)}

    def run(self, paths: Sequence[Path]) -> Iterator[Path]:
        task = self.ray.remote(max_calls=1, max_retries=ATTEMPTS, **self.resources)(worker.run_group)
        running = {task.remote(path): path for path in paths}
        try:
            while running:
                [reference], _ = self.ray.wait(list(running), num_returns=1)
                path = running.pop(reference)
                try:
                    self.ray.get(reference)
                except self.ray.exceptions.RayTaskError as error:
                    if isinstance(error.cause, InputError | Interrupted):
                        raise error.cause from None
                    give_up(path, " ".join(str(error.cause).split()))
                except self.ray.exceptions.RayError as error:
                    give_up(path, f"its worker was lost {ATTEMPTS + 1} times: {' '.join(str(error).split())[:200]}")
                yield path
        finally:
            for reference in running:
                self.ray.cancel(reference, force=True)

    def close(self):
        self.ray.shutdown()
