"""The one loop. Every family of models trains through `fit`; what differs between them is the `Task` handed in."""

import signal
import threading
import time
from pathlib import Path

import jax
import numpy as np

from attention_jax import Diverged, InputError, Interrupted, lower_is_better
from attention_jax.train import hosts
from attention_jax.train.checkpoint import Checkpoints, average
from attention_jax.train.log import MetricsLog, Progress, scalars
from attention_jax.train.optimizer import optimizer
from attention_jax.train.parallel import chunk_runner, replicate
from attention_jax.train.step import init_state


class Interrupt:
    """While open, SIGINT and SIGTERM set `wanted` instead of ending the process."""

    wanted = False

    def __enter__(self):
        self.old = {}
        if threading.current_thread() is threading.main_thread():
            for name in (signal.SIGINT, signal.SIGTERM):
                self.old[name] = signal.signal(name, lambda *_: setattr(self, "wanted", True))
        return self

    def __exit__(self, *_):
        for name, handler in self.old.items():
            signal.signal(name, handler)


def quality(metrics: dict, name: str) -> float:
    """The metric that decides what is best, signed so that higher is better.

    >>> quality({"valid.loss": 2.0}, "valid.loss"), quality({"valid.bleu": 2.0}, "valid.bleu")
    (-2.0, 2.0)
    """
    if name not in metrics:
        raise InputError(f"train.best_metric must be one of {', '.join(metrics)}; got {name}")
    return -metrics[name] if lower_is_better(name) else metrics[name]


def planned_steps(task, train) -> int:
    """The optimizer steps of a whole run, on which schedules depend."""
    steps = train.total_epochs * sum(
        int((weight.sum(1) > 0).sum()) for _, _, weight in task.plan(0, train.steps_per_call)
    )
    return min(steps, train.max_steps or steps)


def fit(
    task,
    optim,
    train,
    directory: Path,
    *,
    resume: bool = False,
    tensorboard: bool = False,
    quiet: bool = False,
    on_epoch=None,
) -> dict:
    """Train `task` and return {"params", "metrics", "history", "steps", "seconds", "examples_per_second"}.

    `optim` and `train` are `config.Optim` and `config.Train`; checkpoints and metrics.jsonl go to `directory`.
    `resume` goes on from the latest checkpoint and gives, on the same number of devices, the same numbers bit for bit as a
    run that was never interrupted. `on_epoch(epoch, metrics)` is called after each epoch; whatever it raises ends the run.

    Raises:
      Interrupted: on SIGINT or SIGTERM, after a checkpoint was written.
      Diverged: the loss is not finite; the step is named.
    """
    total_steps = planned_steps(task, train)
    update = optimizer(optim, total_steps)
    run = chunk_runner(task.loss, update, train.matmul_precision)
    checkpoints = Checkpoints(directory / "checkpoints", keep_last=max(train.keep_last, train.average_last + 1))
    state = init_state(task.init, update, train.seed)
    history, past = [], {"seconds": 0.0, "examples": 0}
    if resume and checkpoints.steps():
        try:
            state, progress = checkpoints.restore(checkpoints.steps()[-1], state)
        except InputError:
            checkpoints.close()
            raise
        history, past = progress["history"], progress["past"]
    log = MetricsLog(directory, keep_until=int(state.step) if resume else None, tensorboard=tensorboard)
    state, buckets = replicate(state), replicate(task.buckets)
    step, epoch, chunk = int(state.step), int(state.epoch), int(state.chunk)
    bar, started, examples = (
        Progress(total_steps, step, quiet or not hosts.first()),
        time.perf_counter(),
        past["examples"],
    )

    def progress() -> dict:
        return {
            "history": history,
            "past": {"seconds": past["seconds"] + time.perf_counter() - started, "examples": examples},
        }

    def stale() -> bool:
        values = [quality(row, train.best_metric) for row in history]
        return bool(train.patience and values and len(values) - 1 - int(np.argmax(values)) >= train.patience)

    with Interrupt() as interrupt:
        try:
            while epoch < train.total_epochs and step < total_steps and not stale():
                chunks = task.plan(epoch, train.steps_per_call)
                sums = []
                for chunk in range(chunk, len(chunks)):
                    bucket, indices, weight = chunks[chunk]
                    weight = weight * (step + np.cumsum(weight.sum(1) > 0) <= total_steps)[:, None].astype(weight.dtype)
                    state, metrics = run(state, buckets[bucket], indices, weight)
                    metrics = jax.device_get(metrics)
                    loss, count = metrics["loss"]
                    bad = ~np.isfinite(loss) & (count > 0)
                    if bad.any():
                        raise Diverged(
                            step + 1 + int(np.cumsum(count > 0)[bad.argmax()]) - 1, float(loss[bad.argmax()])
                        )
                    sums.append(metrics)
                    step, examples = int(state.step), examples + int((weight > 0).sum())
                    log.write(step, epoch=epoch, **scalars(metrics))
                    bar.step(step, scalars(metrics)["train.loss"])
                    if hosts.anywhere(interrupt.wanted) and chunk + 1 < len(chunks):
                        checkpoints.save(state._replace(epoch=np.int32(epoch), chunk=np.int32(chunk + 1)), progress())
                        raise Interrupted(step)
                epoch, chunk = epoch + 1, 0
                seconds = past["seconds"] + time.perf_counter() - started
                total = {name: tuple(np.concatenate([m[name][i] for m in sums]) for i in (0, 1)) for name in sums[0]}
                values = hosts.agree({**scalars(total), **task.evaluate(state.params, False)})
                history.append({"epoch": epoch, "step": step, "seconds": round(seconds, 2), **values})
                log.write(step, **{k: v for k, v in history[-1].items() if k != "step"})
                bar.epoch(history[-1])
                state = state._replace(epoch=replicate(np.int32(epoch)), chunk=replicate(np.int32(0)))
                checkpoints.save(state, progress(), quality(values, train.best_metric))
                if on_epoch:
                    on_epoch(epoch, values)
                if hosts.anywhere(interrupt.wanted):
                    raise Interrupted(step)
            seconds = past["seconds"] + time.perf_counter() - started
            params = chosen(state, checkpoints, train, history)
            metrics = task.evaluate(params, True)
        finally:
            bar.close()
            log.close()
            checkpoints.close()
    return {
        "params": params,
        "metrics": metrics,
        "history": history,
        "steps": step,
        "seconds": seconds,
        "examples_per_second": examples / max(seconds, 1e-9),
    }


def chosen(state, checkpoints: Checkpoints, train, history: list[dict]):
    """The parameters a run ends with: the last ones, the best ones, or the mean after the last N epochs."""
    if train.average_last:
        kept = set(checkpoints.steps()) & {row["step"] for row in history[-train.average_last :]}
        return average([checkpoints.restore(step, state)[0] for step in sorted(kept)])
    if train.use_best:
        return checkpoints.restore(checkpoints.best(), state)[0].params
    return state.params
