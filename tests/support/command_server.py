"""Run `corral` commands as real processes, without loading Corral for each of them.

Three quarters of the CPU time of a short `corral` process go into loading modules. The server loads
them once and forks a child for each command. A child has its own directory, environment, standard
streams and exit status, and runs the entry point of the `corral` command.
"""

import gc
import io
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from corral import __main__ as corral_command

_PRELOADED = ("corral.db.postgres", "corral.db.sqlite", "corral.library", "psycopg")


class CommandServer:
    """A process that runs `corral` commands one after the other. Not safe for threads."""

    def __init__(self) -> None:
        environment = {**os.environ, "LANG": "C.UTF-8", "NO_COLOR": "1"}
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=Path(__file__).parent.parent.parent,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, words: list[str], folder: str, environment: Mapping[str, str], seconds: float
    ) -> tuple[int, list[str]]:
        """Run `corral` with these arguments; its exit status, and the lines that it printed.

        The command is killed after so many seconds.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as output:
            request = {
                "words": words,
                "folder": folder,
                "environment": dict(environment),
                "seconds": seconds,
                "output": output.name,
            }
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            status = self._server.stdout.readline()
            assert status, "the command server ended"
            return int(status), [line.rstrip() for line in output]

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(60)
        self._server.stdout.close()


def serve() -> None:
    """Read requests from standard input until it ends, and answer each with an exit status."""
    commands = import_module("corral.interfaces.cli.commands")
    for module in pkgutil.iter_modules(commands.__path__, commands.__name__ + "."):
        import_module(module.name)
    for name in _PRELOADED:
        import_module(name)
    gc.collect()
    gc.freeze()  # children share these pages with the server
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(request)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(request: dict[str, Any]) -> NoReturn:
    """Become the command."""
    code = 1
    try:
        signal.alarm(int(request["seconds"]))
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(request["output"], os.O_WRONLY | os.O_APPEND), 1)
        os.dup2(1, 2)
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
        sys.argv = ["corral", *request["words"]]
        corral_command.main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
