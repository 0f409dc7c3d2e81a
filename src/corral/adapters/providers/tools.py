"""Corral's own tools, as an agent CLI is told of them when it is started.

No value stands on the command line, where others can read it: who the agent is, and where its store
is, goes on from its environment to the server that it starts.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

NAME = "corral"
VARIABLES = (
    *("CORRAL_AGENT", "CORRAL_HOME", "CORRAL_RUN", "CORRAL_SESSION", "CORRAL_STORE"),
    *("CORRAL_TOKEN", "PYTHONPATH"),
)


def program() -> list[str]:
    """How this very Corral is called, whatever the PATH and the directory are."""
    beside = os.path.join(os.path.dirname(sys.executable), "corral")
    if os.access(beside, os.X_OK):
        return [beside]
    return [sys.executable, "-P", "-m", "corral"]


def server() -> list[str]:
    """The command that serves them."""
    return [*program(), "mcp"]


def as_json() -> str:
    """As `mcpServers` has it, which several CLIs read."""
    command, *args = server()
    entry = {"type": "stdio", "command": command, "args": args}
    return msgspec.json.encode({"mcpServers": {NAME: entry}}).decode()


def as_toml() -> list[str]:
    """As codex reads it, one setting each; it waits for the server, and does not ask a person."""
    command, *args = server()
    settings: dict[str, Any] = {
        "command": command,
        "args": args,
        "env_vars": [*VARIABLES],
        "required": True,
        "default_tools_approval_mode": "approve",
    }
    return [
        f"mcp_servers.{NAME}.{name}={msgspec.json.encode(value).decode()}"
        for name, value in settings.items()
    ]


def for_acp(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """As the Agent Client Protocol hands it over, in a message that nobody else reads."""
    command, *args = server()
    own = [{"name": name, "value": environment[name]} for name in VARIABLES if name in environment]
    return [{"name": NAME, "command": command, "args": args, "env": own}]
