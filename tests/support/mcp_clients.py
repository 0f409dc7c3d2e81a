"""MCP clients: the SDK's client on both transports, a line-based one, and one without transport."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from corral.api import Corral
from corral.mcp.identity import Caller, caller_from_token
from corral.mcp.protocol import handle_message, parse_message

MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class ToolError(Exception):
    """An error result of a tool; `code` is the library's."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__(result["content"][0]["text"])
        self.code = result["_meta"]["corral/error"]["code"]
        self.details: dict[str, Any] = result["_meta"]["corral/error"]["details"]


def value_of(result: dict[str, Any]) -> Any:
    """Return the structured result of a tool; its text must be equal."""
    if result["isError"]:
        raise ToolError(result)
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    assert result["structuredContent"]["next_step"]
    return result["structuredContent"]


class Agent:
    """An agent that calls tools with its token, without a transport."""

    def __init__(self, store: Corral, name: str, **scope: str) -> None:
        self._store = store.as_actor(f"agent:{name}")
        self._who = store.internal.tokens.check(
            store.tokens.create(f"t{os.urandom(4).hex()}", scope=f"agent:{name}").value
        )
        self._place = scope
        self.gone = threading.Event()

    def __call__(self, tool: str, **arguments: Any) -> Any:
        return value_of(self.ask("tools/call", name=tool, arguments=arguments)["result"])

    def ask(self, method: str, **params: Any) -> Any:
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        return json.loads(
            handle_message(parse_message(line.encode()), self._identify, self.gone).body
        )

    def _identify(self) -> tuple[Corral, Caller]:
        return self._store, caller_from_token(self._store, self._who, self._place)


def environment(url: str, agent: str | None, home: Path, **more: str) -> dict[str, str]:
    """Return the environment that an agent CLI passes to the server it starts."""
    inherited = {name: os.environ[name] for name in ("PYTHONPATH", "PATH") if name in os.environ}
    identity = {"CORRAL_AGENT": agent} if agent else {}
    return (
        inherited
        | identity
        | {"CORRAL_STORE": url, "CORRAL_HOME": str(home), "USER": "tester"}
        | more
    )


COMMAND = [sys.executable, "-m", "corral", "mcp"]


class StdioClient:
    """A line-based client of a server on pipes."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process

    def send(self, message: dict[str, Any] | bytes) -> None:
        assert self.process.stdin is not None
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def next(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, method: str, id: int | str = 1, **params: Any) -> Any:
        self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        return self.next()

    def call(self, tool: str, **arguments: Any) -> Any:
        return value_of(self.ask("tools/call", name=tool, arguments=arguments)["result"])


@contextmanager
def stdio_client(env: dict[str, str], cwd: Path) -> Iterator[StdioClient]:
    """Run `corral mcp` while the block runs; it must exit by itself afterwards."""
    with subprocess.Popen(
        COMMAND, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield StdioClient(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(45) == 0
        finally:
            process.kill()


@asynccontextmanager
async def over_stdio(env: dict[str, str], cwd: Path, era: str) -> AsyncIterator[Any]:
    """Connect the SDK's client to a server that it starts."""
    from mcp import Client, StdioServerParameters

    server = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=env, cwd=cwd)
    async with Client(server, mode=era) as client:
        yield client


@asynccontextmanager
async def over_http(url: str, token: str, era: str) -> AsyncIterator[Any]:
    """Connect the SDK's client to a daemon's endpoint."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from mcp import Client

    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=era) as client,
    ):
        yield client
