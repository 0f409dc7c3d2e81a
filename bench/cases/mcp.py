"""MCP tools over stdio: latency and throughput."""

import compileall
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import corral
from bench.harness import Bar, Bench, Rates, Rival, Row
from bench.opponents import open_store

TITLE = "MCP tools on stdio"
ABOUT = """
    An agent CLI starts the server with each run and may drop slow tools. First: the time from
    starting the process to its first answer, over `python -c pass` with the same interpreter.
    Then: sequential calls by the same client to `corral mcp` and to the SDK's stdio server
    (1x), which runs the same functions on the same kind of store.
"""
CORRAL = str(Path(sys.executable).parent / "corral")
OURS = [CORRAL, "mcp"]
ROOT = Path(__file__).parents[2]
SDK = [sys.executable, "-m", "bench.opponents.sdk_stdio"]
FIRST = {
    "initialize": ("initialize", {"protocolVersion": "2025-11-25"}),
    "tools/list": ("tools/list", {}),
    "a first tool call": ("tools/call", {"name": "lock_list", "arguments": {}}),
}
CALLS = {
    "send": {"name": "send", "arguments": {"to": "bob", "text": "It is built."}},
    "lock_list": {"name": "lock_list", "arguments": {}},
}


class StdioServer:
    """A client of a server in its own process, line by line."""

    def __init__(self, command: list[str], environment: dict[str, str], cwd: Path) -> None:
        self.process = subprocess.Popen(
            command, env=environment, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def begin(self) -> None:
        about = {"name": "bench", "version": "1"}
        self.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=about)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def ask(self, method: str, **params: Any) -> bytes:
        assert self.process.stdout is not None
        self._send({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        result = self.process.stdout.readline()
        assert b'"result"' in result, result
        assert b'"isError":true' not in result, result
        return result

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(message) + b"\n")
        self.process.stdin.flush()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)


def measure(bench: Bench) -> list[Row]:
    # As pip does on installation; a run that cannot write bytecode would compile at every start.
    compileall.compile_dir(str(Path(corral.__file__).parent), quiet=1)
    folder = bench.new_file().parent
    first = _first_answers(bench, _environment(folder), folder)
    corral_environment, sdk_environment = (_environment(bench.new_file().parent) for _ in range(2))
    with ExitStack() as closing:
        rivals = []
        for name, command, environment in (
            ("SDK", SDK, sdk_environment),
            ("Corral", OURS, corral_environment),
        ):
            client = StdioServer(command, environment, folder)
            closing.callback(client.close)
            client.begin()
            rivals.append(Rival(name, partial(_calls, client, bench.pick(1.5, 0.7))))
        result = bench.compare(rivals[0], rivals[1:], rounds=bench.pick(9, 4))
    return first + [
        Row(f"calls of {name}", result.speed_of("Corral", name), Bar(">=", 5), over="SDK")
        for name in CALLS
    ]


def _environment(folder: Path) -> dict[str, str]:
    url = f"sqlite:///{folder}/store.db"
    with open_store(url) as store:
        for name in ("ada", "bob"):
            store.agents.create(name, command="cat")
        store.projects.register(folder)
        project = store.projects.list().items[0].id
        session = store.sessions.open("ada", project=project)
    variables = {"CORRAL_STORE": url, "CORRAL_AGENT": "ada", "CORRAL_SESSION": session.id}
    # The SDK's server is a module of this benchmark, started in another folder.
    return os.environ | variables | {"CORRAL_HOME": str(folder), "PYTHONPATH": str(ROOT)}


def _first_answers(bench: Bench, environment: dict[str, str], cwd: Path) -> list[Row]:
    result = bench.compare(
        Rival("python -c pass", partial(_start_python, environment)),
        [Rival(name, partial(_first_answer, name, environment, cwd)) for name in FIRST],
        rounds=bench.pick(30, 10),
    )
    bars = {"initialize": Bar("<=", 8), "tools/list": Bar("<=", 8)}
    return [
        Row(f"first answer: {name}", result.speed_of_base_over(name, "run"), bars.get(name))
        for name in FIRST
    ]


def _start_python(environment: dict[str, str]) -> Rates:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
    return {"run": 1 / (time.perf_counter() - start)}


def _first_answer(name: str, environment: dict[str, str], cwd: Path) -> Rates:
    method, params = FIRST[name]
    start = time.perf_counter()
    client = StdioServer(OURS, environment, cwd)
    client.ask(method, **params)
    elapsed = time.perf_counter() - start
    client.close()
    return {"run": 1 / elapsed}


def _calls(client: StdioServer, seconds: float) -> Rates:
    rates = {}
    for name, call in CALLS.items():
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            client.ask("tools/call", **call)
            count += 1
        rates[name] = count / (time.perf_counter() - start)
    return rates
