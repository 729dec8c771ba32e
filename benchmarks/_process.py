"""A function in a process of its own, with a time limit: a crash or a hang costs one result, not the benchmark.

Standard library only: what imports JAX, and what does not, is left to the function.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NO_MEMORY = ("out of memory", "out_of_memory", "resource_exhausted", "can't allocate")


def run_in_process(function: Callable[[], dict], limit: float | None = None) -> dict:
    """Call `function` in a fresh process and return its dict with a key "problem", which is "" if all went well.

    An exception, a crash, or more than `limit` seconds, the start of the process included, gives {"problem": reason}.
    The process and those that it has started are killed at the end. `function` must be picklable.
    """
    with tempfile.TemporaryDirectory() as directory:
        call, log, result = (Path(directory) / name for name in ("call", "log", "result"))
        call.write_bytes(pickle.dumps(function))
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "benchmarks._process", str(call), str(result)]
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command, stdout=stream, stderr=stream, env=os.environ | {"PYTHONPATH": path}, start_new_session=True
            )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return {"problem": f"not done within {limit:.3g} s"}
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return pickle.loads(result.read_bytes()) if result.exists() else {"problem": describe_exit(code, log)}


def reason(error: Exception) -> str:
    """Return an error as one short line.

    >>> reason(ValueError("no such thing\\nin detail")), reason(RuntimeError("RESOURCE_EXHAUSTED: 3 GiB"))
    ('ValueError: no such thing', 'out of memory')
    """
    if isinstance(error, MemoryError) or any(word in str(error).lower() for word in NO_MEMORY):
        return "out of memory"
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:160]


def describe_exit(code: int, log: Path) -> str:
    """Return why a process without a result has ended, and the last line that it wrote."""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    if code == -signal.SIGKILL:
        how += ", as for lack of memory"
    last = (log.read_text(errors="replace").strip().splitlines() or [""])[-1].strip()
    return f"the process {how}{': ' if last else ''}{last}"[:160]


def main(call: str, result: str):
    """Write the result of the pickled function `call` to the file `result`, and end without any shutdown."""
    try:
        row = {**pickle.loads(Path(call).read_bytes())(), "problem": ""}
    except Exception as error:
        row = {"problem": reason(error)}
    Path(f"{result}.part").write_bytes(pickle.dumps(row))
    os.replace(f"{result}.part", result)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
