"""Configuration of Corral's MCP server in the formats of the agent CLIs.

Command lines are readable by other users, so they contain no values such as tokens. The server
inherits the agent's identity and the address of the store from the environment of the CLI.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

SERVER_NAME = "corral"
PASSED_VARIABLES = (
    *("CORRAL_AGENT", "CORRAL_HOME", "CORRAL_RUN", "CORRAL_SESSION", "CORRAL_STORE"),
    *("CORRAL_TOKEN", "PYTHONPATH"),
)


def get_corral_command() -> list[str]:
    """Return the command of this installation of Corral, independent of PATH and directory."""
    script = os.path.join(os.path.dirname(sys.executable), "corral")
    if os.access(script, os.X_OK):
        return [script]
    return [sys.executable, "-P", "-m", "corral"]


def get_server_command() -> list[str]:
    """Return the command of the MCP server."""
    return [*get_corral_command(), "mcp"]


def render_json() -> str:
    """Return the configuration as a JSON `mcpServers` object, which several CLIs accept."""
    command, *args = get_server_command()
    entry = {"type": "stdio", "command": command, "args": args}
    return msgspec.json.encode({"mcpServers": {SERVER_NAME: entry}}).decode()


def render_toml() -> list[str]:
    """Return the configuration as TOML settings for codex.

    Codex waits for the server at startup and runs its tools without asking for approval.
    """
    command, *args = get_server_command()
    settings: dict[str, Any] = {
        "command": command,
        "args": args,
        "env_vars": [*PASSED_VARIABLES],
        "required": True,
        "default_tools_approval_mode": "approve",
    }
    return [
        f"mcp_servers.{SERVER_NAME}.{name}={msgspec.json.encode(value).decode()}"
        for name, value in settings.items()
    ]


def build_acp_servers(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the configuration for a session request of the Agent Client Protocol.

    It contains the values of the variables: the message goes through a private pipe.
    """
    command, *args = get_server_command()
    variables = [
        {"name": name, "value": environment[name]}
        for name in PASSED_VARIABLES
        if name in environment
    ]
    return [{"name": SERVER_NAME, "command": command, "args": args, "env": variables}]
