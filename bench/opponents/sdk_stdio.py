"""The same two tools behind the server of the protocol's own SDK, on standard input and output."""

import threading
from typing import Any

import msgspec
from mcp.server.mcpserver import MCPServer

from bench.opponents import open_store
from corral.interfaces.mcp import holding, talking
from corral.interfaces.mcp.call import Call
from corral.interfaces.mcp.identity import from_environment

server = MCPServer("sdk")
store = open_store(None)
caller = from_environment(store)


def _call(tool: str) -> Call:
    return Call(store, caller, tool, threading.Event())


@server.tool()
def send(to: str, text: str) -> dict[str, Any]:
    """Write a letter to another agent."""
    told = talking.send(_call("send"), talking.Send(to=to, text=text))
    answer: dict[str, Any] = msgspec.to_builtins(told)
    return answer


@server.tool()
def lock_list() -> dict[str, Any]:
    """Who holds which files."""
    told = holding.lock_list(_call("lock_list"), holding.LockListAsked())
    answer: dict[str, Any] = msgspec.to_builtins(told)
    return answer


if __name__ == "__main__":
    server.run()
