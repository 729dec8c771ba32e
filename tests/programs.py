"""Programs that are run one after another in one process, which imports the libraries once."""

import json
import os
import subprocess
import sys

SERVER = """
import contextlib, io, json, os, runpy, sys, traceback

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    words, directory = json.loads(line)
    code, out, error = 0, io.StringIO(), io.StringIO()
    os.chdir(directory)
    sys.path[0] = directory
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            if words[0] == "-c":
                sys.argv = ["-c", *words[2:]]
                exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
            else:
                sys.argv = words
                runpy.run_path(words[0], run_name="__main__")
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
    print(json.dumps([code, out.getvalue(), error.getvalue()]), file=answers, flush=True)
"""


class Programs:
    """A process that runs programs as `python WORDS` would, each with a `__main__` of its own."""

    def __init__(self, environment=os.environ):
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", SERVER], env=dict(environment), **streams)

    def __call__(self, *words: str, cwd) -> subprocess.CompletedProcess:
        """Run `-c CODE` or a script in the directory `cwd`."""
        self.process.stdin.write(json.dumps([words, str(cwd)]) + "\n")
        self.process.stdin.flush()
        return subprocess.CompletedProcess(words, *json.loads(self.process.stdout.readline()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
