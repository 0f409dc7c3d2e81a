"""A process that has loaded the command line and forks for each command.

Loading `corral` takes ten times as long as most commands do. A forked command has its own pid,
working directory, environment, standard streams and exit status. Two things differ from a command
that a shell starts: its modules are loaded already, and `/proc/PID/environ` is that of the server.
Tests of start-up, signals, terminals and the environment start real processes instead.
"""

import atexit
import gc
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MAX_REQUEST = 100_000
"""The largest request in bytes. Larger requests, and larger input, start a real process."""
MAX_INPUT = 32_768  # fits into a pipe, so the client never blocks on it

_server: "CommandServer | None" = None


def run_command(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout: float,
    input: bytes = b"",
    merge_output: bool = False,
) -> "subprocess.CompletedProcess[bytes] | None":
    """Run `corral ARGUMENTS` to its end, as `subprocess.run` would.

    With `merge_output`, standard error goes where standard output goes. Returns None where a real
    process is needed instead. Raises TimeoutExpired after killing the command.
    """
    global _server
    request = json.dumps([list(arguments), str(cwd), dict(env)]).encode()
    if len(request) > MAX_REQUEST or len(input) > MAX_INPUT or not hasattr(os, "pidfd_open"):
        return None
    if _server is None or _server.client_pid != os.getpid() or _server.exit_code is not None:
        _server = CommandServer()
    return _server.run(request, input, timeout, merge_output)


class CommandServer:
    """The client side. Threads may call `run` concurrently."""

    def __init__(self) -> None:
        self.client_pid = os.getpid()
        self._socket, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sending = threading.Lock()
        # `kill_processes` finds the processes of a test by CORRAL_HOME; this one outlives the test.
        env = {name: os.environ[name] for name in os.environ if not name.startswith("CORRAL_")}
        with server_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(server_end.fileno())],
                cwd=Path(__file__).parents[2],
                env=env,
                pass_fds=[server_end.fileno()],
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self._close)

    @property
    def exit_code(self) -> int | None:
        """The exit code of the server; None while it runs."""
        return self._process.poll()

    def run(
        self, request: bytes, input: bytes, timeout: float, merge_output: bool
    ) -> "subprocess.CompletedProcess[bytes]":
        (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = (
            os.pipe() for _ in range(3)
        )
        report, to_report = os.pipe()
        streams = [stdin, stdout, stdout if merge_output else stderr, to_report]
        try:
            with self._sending:
                socket.send_fds(self._socket, [request], streams)
        finally:
            for descriptor in (stdin, stdout, stderr, to_report):
                os.close(descriptor)
        os.write(to_stdin, input)
        os.close(to_stdin)
        out, err, status = _read_to_end([from_stdout, from_stderr, report], timeout)
        if not status:
            raise RuntimeError(f"the command server ended with {self._process.wait()}")
        # The report is "PID " when the command has started and "PID CODE" once it has ended.
        pid, code = status.split(b" ")
        if not code:
            os.kill(int(pid), signal.SIGKILL)
            raise subprocess.TimeoutExpired(request.decode(), timeout, out, err)
        return subprocess.CompletedProcess(request.decode(), int(code), out, err)

    def _close(self) -> None:
        if os.getpid() == self.client_pid:
            self._socket.close()
            self._process.wait()


def _read_to_end(descriptors: list[int], timeout: float) -> list[bytes]:
    """Read all descriptors until they are closed or the timeout expires."""
    read = {descriptor: b"" for descriptor in descriptors}
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() and (remaining := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(remaining):
                data = os.read(key.fd, 1 << 16)
                read[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
    for descriptor in descriptors:
        os.close(descriptor)
    return list(read.values())


# -- the server --------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client ends the server by its socket
    _load()
    running: dict[int, tuple[int, int]] = {}  # pidfd -> pid, report
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not requests:
                    selector.unregister(key.fd)
                    _report(*running.pop(key.fd))
                    os.close(key.fd)
                    continue
                message, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST, 4)
                if not message:
                    return
                pid = os.fork()
                if pid == 0:
                    _become_command(json.loads(message), descriptors[:3])
                *streams, report = descriptors
                for stream in streams:
                    os.close(stream)
                os.write(report, f"{pid} ".encode())
                pidfd = os.pidfd_open(pid)
                running[pidfd] = pid, report
                selector.register(pidfd, selectors.EVENT_READ)


def _report(pid: int, report: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        os.write(report, str(code).encode())
    except BrokenPipeError:
        pass  # the client no longer waits
    finally:
        os.close(report)


def _load() -> None:
    from importlib import import_module

    import corral.cli.commands as commands

    for module in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}."):
        import_module(module.name)
    gc.collect()
    gc.freeze()  # so that a garbage collection in a fork copies none of these pages


def _become_command(request: list[Any], streams: list[int]) -> None:
    code = 70
    try:
        arguments, cwd, env = request
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(3, 64)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        time.tzset()
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            old = getattr(sys, f"__{name}__")
            stream = open(  # noqa: SIM115
                number,
                "w" if number else "r",
                encoding=old.encoding,
                errors=old.errors,
                closefd=False,
            )
            setattr(sys, name, stream)
        sys.argv = ["corral", *arguments]
        code = _run_main()
    finally:
        os._exit(code)


def _run_main() -> int:
    """Run the command like the interpreter does, with its exit handlers and threads."""
    from corral.__main__ import main

    code: Any = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code or 0


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        _serve(requests)
