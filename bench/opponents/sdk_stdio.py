"""The same two tools on the SDK's server over stdio."""

import threading
from typing import Any

import msgspec
from mcp.server.mcpserver import MCPServer

from bench.opponents import open_store
from corral.mcp.call import ToolCall
from corral.mcp.identity import caller_from_environment
from corral.mcp.tools import locks, mail

server = MCPServer("sdk")
store = open_store(None)
caller = caller_from_environment(store)


def _call(tool: str) -> ToolCall:
    return ToolCall(store, caller, tool, threading.Event())


@server.tool()
def send(to: str, text: str) -> dict[str, Any]:
    """Send a letter to another agent."""
    result = mail.send(_call("send"), mail.SendArguments(to=to, text=text))
    answer: dict[str, Any] = msgspec.to_builtins(result)
    return answer


@server.tool()
def lock_list() -> dict[str, Any]:
    """List the locked files and their holders."""
    result = locks.lock_list(_call("lock_list"), locks.LockListArguments())
    answer: dict[str, Any] = msgspec.to_builtins(result)
    return answer


if __name__ == "__main__":
    server.run()
