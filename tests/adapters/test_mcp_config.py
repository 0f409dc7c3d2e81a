"""The MCP server and hooks are configured for each CLI, with no secret in an argument."""

import json
import tomllib

from corral.adapters.providers import mcp_config, registry
from corral.adapters.providers.provider import LaunchRequest

ASK = LaunchRequest("hello", tools=True, allow=("Read",))


def test_claude_gets_the_server_and_may_call_its_tools() -> None:
    args = registry.get_provider("claude").build_command(ASK).args
    (config,) = [arg.partition("=")[2] for arg in args if arg.startswith("--mcp-config=")]
    entry = json.loads(config)["mcpServers"]["corral"]
    assert [entry["command"], *entry["args"]] == mcp_config.get_server_command()
    assert "--allowedTools=Read,mcp__corral" in args


def test_codex_gets_the_server_and_its_variable_names() -> None:
    args = registry.get_provider("codex").build_command(ASK).args
    config = "\n".join(arg for arg in args if arg.startswith("mcp_servers."))
    entry = tomllib.loads(config)["mcp_servers"]["corral"]
    assert [entry["command"], *entry["args"]] == mcp_config.get_server_command()
    assert {"CORRAL_AGENT", "CORRAL_RUN", "CORRAL_STORE"} <= {*entry["env_vars"]}
    assert entry["required"] is True


def test_acp_agents_get_the_server_in_the_first_message() -> None:
    (entry,) = mcp_config.build_acp_servers({"CORRAL_AGENT": "ada", "SECRET": "x"})
    assert [entry["command"], *entry["args"]] == mcp_config.get_server_command()
    assert entry["env"] == [{"name": "CORRAL_AGENT", "value": "ada"}]


def test_without_the_setting_no_server_is_configured() -> None:
    for name in ("claude", "codex"):
        assert "corral" not in str(
            registry.get_provider(name).build_command(LaunchRequest("hello")).args
        )


def test_hooks_are_configured_in_the_format_of_each_cli() -> None:
    ask = LaunchRequest("hello", hooks=True)
    args = registry.get_provider("claude").build_command(ask).args
    (claude_settings,) = [arg.partition("=")[2] for arg in args if arg.startswith("--settings=")]
    codex_settings = "\n".join(
        arg for arg in registry.get_provider("codex").build_command(ask).args if "hooks." in arg
    )
    for name, hooks in (
        ("claude", json.loads(claude_settings)["hooks"]),
        ("codex", tomllib.loads(codex_settings)["hooks"]),
    ):
        for event, when in (("PreToolUse", "pre"), ("PostToolUse", "post")):
            ((entry),) = hooks[event]
            (hook,) = entry["hooks"]
            assert "Write" in entry["matcher"]
            assert hook["command"].endswith(f"corral hook {name} {when}-tool-use")
            assert (hook["type"], hook["timeout"]) == ("command", 10)
