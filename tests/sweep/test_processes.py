"""Real processes: worker processes whose sweep is killed, and a Ray cluster that loses a machine."""

import contextlib
import gc
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attention_jax.cli import commands
from attention_jax.config import Config, Dates, LuongSeq2seqConfig
from attention_jax.errors import InputError
from attention_jax.runs import directory as run_directory
from attention_jax.sweep import executors

ROOT = Path(__file__).resolve().parents[2]
TINY = ["--data.examples", "440", "--data.validation", "36", "--train.best-metric", "valid.loss"]
TINY += ["--model.embed-size", "4", "--train.batch-size", "64", "--train.steps-per-call", "3"]
SEARCH = ["--train.total-epochs", "4", "--over", "optim.learning-rate=1e-3..1e-1:log:3", "model.hidden-size=6,8"]
"""Six trials in two groups."""
SIX = ["--train.total-epochs", "50", "--over", "optim.learning-rate=1e-3,1e-2", "model.hidden-size=4,6,8"]
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def command(*arguments) -> list[str]:
    return [sys.executable, str(ROOT / "launch.py"), "sweep", "date_luong", *TINY, *map(str, arguments)]


def table(directory: Path) -> list[tuple]:
    """What must not depend on how often a sweep was stopped."""
    ranking = json.loads((directory / "sweep.json").read_text())["ranking"]
    return [(row["trial"], row["params"], row["state"], row["value"]) for row in ranking]


def epochs(directory: Path) -> list[list[int]]:
    """The epochs in each run's log, in order: each must be there once."""
    logs = sorted(directory.glob("trials/*/seed*/metrics.jsonl"))
    return [[json.loads(line)["epoch"] for line in log.read_text().splitlines() if "seconds" in line] for log in logs]


@pytest.fixture(scope="module")
def whole_sweep(tmp_path_factory):
    """A sweep in this process."""
    directory = tmp_path_factory.mktemp("whole")
    commands.main(["sweep", "date_luong", *TINY, *SEARCH, "--out", str(directory)])
    return directory


@pytest.mark.slow
def test_worker_processes_give_the_same_table(whole_sweep, tmp_path):
    process = subprocess.Popen(command(*SEARCH, "--out", tmp_path, "--jobs", 2), **SILENT)
    wait_for(lambda: list(tmp_path.glob("trials/*/*/metrics.jsonl")), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run(command(*SEARCH, "--out", tmp_path, "--jobs", 2), check=True, stdout=subprocess.DEVNULL, timeout=300)
    assert table(tmp_path) == table(whole_sweep)
    assert epochs(tmp_path) == [list(range(1, 5))] * 6


@pytest.mark.slow
def test_a_sweep_from_a_run_has_its_model_and_weights(whole_sweep, tmp_path):
    """The best trial of two fine-tunings, by its printed command in the same process, ends at its loss (a model of
    another size than the experiment's, 5 CPU-seconds)."""
    first = whole_sweep / "trials" / "0001" / "seed0"
    data = [*TINY[:4], "--train.best-metric", "valid.loss", "--train.batch-size", "64", "--train.total-epochs", "1"]
    search = ["--from", str(first), "--over", "optim.learning-rate=1e-3,1e-2", "--out", str(tmp_path / "sweep")]
    commands.main(["sweep", "date_luong", *data, *search])
    best = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    words = shlex.split(best["command"])[2:]
    assert words[:4] == ["train", "date_luong", "--from", str(first)] and not any("--model" in word for word in words)
    commands.main([*words, "--out", str(tmp_path / "again")])
    again = run_directory.read_result(tmp_path / "again")["metrics"]["valid.loss"]
    assert again == best["ranking"][0]["value"]
    assert again < run_directory.read_history(first)[1]["valid.loss"]  # it began with trained weights


class Worker(executors.Subprocesses):
    """Workers that end with the codes of a script, one after another; the last one ends well."""

    def __init__(self, jobs: int, codes: dict[str, list[int]]):
        super().__init__(jobs)
        self.codes = codes

    def _start(self, path, share):
        code = self.codes[path.stem].pop(0)
        end = f"print('so it is', flush=True); os.kill(os.getpid(), {-code})" if code < 0 else f"sys.exit({code})"
        with path.with_suffix(".log").open("a") as log:
            return subprocess.Popen([sys.executable, "-S", "-c", f"import os, sys; {end}"], stdout=log)


def test_a_killed_worker_is_begun_three_times(tmp_path):
    paths = [tmp_path / f"{name}.json" for name in ("well", "killed once", "always killed")]
    for path in paths:
        member = (Config("date_luong", Dates(), LuongSeq2seqConfig()), tmp_path / path.stem)
        executors.worker.write(path, executors.worker.Group([member]))
    codes = {"well": [0], "killed once": [-signal.SIGKILL, 0], "always killed": [-signal.SIGKILL] * 3}
    assert sorted(Worker(2, codes).run(paths)) == sorted(paths)
    assert codes == {"well": [], "killed once": [], "always killed": []}
    assert [(tmp_path / path.stem / "failure.json").exists() for path in paths] == [False, False, True]
    assert "3 times with exit code -9: so it is" in (tmp_path / "always killed" / "failure.json").read_text()
    with pytest.raises(InputError, match="it said nothing"):
        list(Worker(1, {"well": [2]}).run(paths[:1]))
    with pytest.raises(KeyboardInterrupt):
        list(Worker(1, {"well": [130]}).run(paths[:1]))


def test_warnings_of_workers_are_passed_on_once(tmp_path, capsys):
    """Not those of an earlier command, whose lines are in the same file."""
    path = tmp_path / "group.json"
    path.with_suffix(".log").write_text("warning: of yesterday\n")

    class Warning(executors.Subprocesses):
        def _start(self, path, share):
            with path.with_suffix(".log").open("a") as log:
                script = "print('a line'); print('warning: --train.log mlflow failed')"
                return subprocess.Popen([sys.executable, "-S", "-c", script], stdout=log)

    assert list(Warning(1).run([path])) == [path]
    assert capsys.readouterr().err == f"warning: --train.log mlflow failed ({tmp_path / 'group.log'})\n"


def wait_for(happened, process, limit: float = 200):
    """Return what `happened` returns as soon as it is true."""
    until = time.monotonic() + limit
    while not (value := happened()):
        assert process.poll() is None, f"the process ended with {process.returncode}"
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.02)
    return value


def groups_of(node, directory: Path) -> list[Path]:
    """The groups that workers of an emulated machine hold the lock of."""
    raylet = node.all_processes["raylet"][0].process.pid
    groups = []
    for worker in Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has just ended
            files = [Path(os.readlink(file)) for file in Path(f"/proc/{worker}/fd").iterdir()]
            groups += [file for file in files if file.parent == directory / "groups" and file.is_dir()]
    return groups


def has_checkpoint(group: Path) -> bool:
    return any(path.is_dir() and path.name.isdigit() for path in group.glob("*/checkpoints/*"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ray forks, and JAX warns of it
def test_ray_cluster_survives_a_lost_machine(tmp_path):
    pytest.importorskip("ray", reason="the Ray executor is tested where ray is installed: pip install ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        arguments = command(*SIX, "--out", tmp_path / "cluster", "--ray", cluster.address)
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(arguments, stdout=log, stderr=log)
        find_started_groups = lambda: [
            (node, group) for node in nodes for group in groups_of(node, tmp_path / "cluster") if has_checkpoint(group)
        ]
        [node, group], *_ = wait_for(find_started_groups, process, limit=600)
        cluster.remove_node(node, allow_graceful=False)
        members = [
            Path(member["directory"]) for member in json.loads(group.with_suffix(".json").read_text())["members"]
        ]
        assert not any((member / "result.json").exists() for member in members), (
            "the group had ended before its machine was lost"
        )
        assert process.wait(timeout=600) == 0, (tmp_path / "log").read_text()
    finally:
        cluster.shutdown()
        gc.collect()  # processes of Ray that nobody waited for, and whose warning is ignored here
    subprocess.run(command(*SIX, "--out", tmp_path / "here"), check=True, stdout=subprocess.DEVNULL, timeout=300)
    assert table(tmp_path / "cluster") == table(tmp_path / "here")
    assert epochs(tmp_path / "cluster") == [list(range(1, 51))] * 6
    best = [json.loads((tmp_path / where / "sweep.json").read_text())["best"] for where in ("cluster", "here")]
    assert best[0] == best[1] is not None


@pytest.mark.slow
def test_an_unreachable_cluster_is_one_clear_line(tmp_path):
    pytest.importorskip("ray", reason="the Ray executor is tested where ray is installed: pip install ray")
    process = subprocess.run(
        command(*SIX, "--out", tmp_path, "--ray", "127.0.0.1:1"), capture_output=True, text=True, timeout=100
    )
    assert process.returncode == 2
    assert process.stderr.startswith("error: no Ray cluster answers at 127.0.0.1:1") and process.stderr.count("\n") == 1


def test_without_ray_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="pip install ray"):
        executors.Ray("auto")


@pytest.mark.slow
def test_report_works_while_a_sweep_runs(whole_sweep, tmp_path, capsys):
    import shutil

    from attention_jax.sweep import summary

    shutil.copytree(whole_sweep, tmp_path / "running")
    log = tmp_path / "running" / "trials" / "0003" / "seed0" / "metrics.jsonl"
    (log.parent / "result.json").unlink()
    log.write_text("\n".join(log.read_text().splitlines()[:4]) + '\n{"step": 9, "ep')  # half a line is being written
    summary.report(tmp_path / "running")
    assert "1 running" in capsys.readouterr().out
    [row] = [
        row for row in json.loads((tmp_path / "running" / "sweep.json").read_text())["ranking"] if row["trial"] == 3
    ]
    assert row["state"] == "running" and row["value"] == run_directory.read_history(log.parent)[-1]["valid.loss"]
