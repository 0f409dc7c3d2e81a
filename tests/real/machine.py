"""A fake user's machine: an empty home, dummy keys, and a model stub on loopback."""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from corral.adapters.providers.facts import ProviderFact, UsageFact
from corral.adapters.providers.provider import LaunchCommand, Provider, StreamParser
from tests.support.stub_model import Stub

NPM = Path(__file__).parents[2] / ".venv-real" / "npm" / "node_modules" / ".bin"
NODE = Path(__file__).parents[2] / ".venv-real" / "npm" / "node"
"""The folder of the node that `make test-real` installs for the CLIs."""
PATH = os.environ.get("PATH", "")
INSTALL_HINT = "put it on PATH, or its package into NPM_AGENTS of `make test-real`"
CODEX = """
model = "stub"
model_provider = "stub"
approval_policy = "{approval}"
{sandbox}
check_for_update_on_startup = false
[features]
plugins = false
apps = false
[analytics]
enabled = false
[model_providers.stub]
name = "stub"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "STUB_KEY"
request_max_retries = 1
stream_max_retries = 1
"""


def find_packaged(module: str, file: str) -> str | None:
    """Return a program that a Python package contains."""
    spec = importlib.util.find_spec(module)
    path = Path(spec.origin).parent / file if spec and spec.origin else None
    return str(path) if path and os.access(path, os.X_OK) else None


def program(name: str) -> str | None:
    """Return the newest program: from npm, from a Python package, or the user's."""
    if result := shutil.which(name, path=str(NPM)):
        return result
    if name == "claude" and (result := find_packaged("claude_agent_sdk", "_bundled/claude")):
        return result
    if name == "codex" and (result := find_packaged("codex_cli_bin", "bin/codex")):
        return result
    return shutil.which(name)


def steps(*items: dict[str, Any]) -> str:
    """Return a prompt that tells the stub what to reply."""
    return "STUB:" + json.dumps({"steps": items})


class Machine:
    def __init__(self, folder: Path, stub: Stub) -> None:
        self.stub = stub
        self.home = folder / "home"
        self.work = folder / "work"
        for place in (self.home, self.work, folder / "tmp"):
            place.mkdir()
        node = os.path.dirname(shutil.which("node", path=f"{NODE}:{PATH}") or "/usr/bin/node")
        self.env = {
            "PATH": f"{node}:/usr/bin:/bin",
            "HOME": str(self.home),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            # claude
            "ANTHROPIC_BASE_URL": stub.url,
            "ANTHROPIC_API_KEY": "dummy",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_MAX_RETRIES": "1",
            "CLAUDE_CODE_TMPDIR": str(folder / "tmp"),
            # codex disables its sandbox if its home is below the temporary folder
            "STUB_KEY": "dummy",
            "TMPDIR": str(folder / "tmp"),
            # gemini, qwen, opencode, copilot
            "GEMINI_API_KEY": "dummy",
            "GOOGLE_GEMINI_BASE_URL": stub.url,
            "OPENAI_API_KEY": "dummy",
            "OPENAI_BASE_URL": f"{stub.url}/v1",
            "OPENAI_MODEL": "stub",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "COPILOT_OFFLINE": "true",
            "COPILOT_AUTO_UPDATE": "false",
            "COPILOT_PROVIDER_BASE_URL": f"{stub.url}/v1",
            "COPILOT_PROVIDER_API_KEY": "dummy",
            "COPILOT_MODEL": "stub",
        }
        self.configure()

    def configure(self, *, sandbox: str | None = None, approval: str = "never") -> None:
        setting = f'sandbox_mode = "{sandbox}"' if sandbox else ""
        codex = CODEX.format(url=self.stub.url, sandbox=setting, approval=approval)
        self.write(".codex/config.toml", codex)
        trusted = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": ["dummy"], "rejected": []},
            "projects": {str(self.work): {"hasTrustDialogAccepted": True}},
        }
        self.write(".claude.json", json.dumps(trusted))
        for name, auth in (("gemini", "gemini-api-key"), ("qwen", "openai")):
            setting = {
                "security": {"auth": {"selectedType": auth}},
                "general": {"disableAutoUpdate": True},
                "privacy": {"usageStatisticsEnabled": False},
            }
            if name == "gemini":  # otherwise a classifier chooses one by an extra request
                setting["model"] = {"name": "gemini-2.5-pro"}
            self.write(f".{name}/settings.json", json.dumps(setting))
        model = {"npm": "@ai-sdk/openai-compatible", "models": {"stub": {"name": "stub"}}}
        model["options"] = {"baseURL": f"{self.stub.url}/v1", "apiKey": "dummy"}
        opencode = {"model": "stub/stub", "provider": {"stub": model}}
        self.write(".config/opencode/opencode.json", json.dumps(opencode))

    def write(self, name: str, content: str) -> None:
        file = self.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)

    def popen(self, start: LaunchCommand, **options: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            start.args,
            cwd=self.work,
            env={**self.env, **start.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            **options,
        )

    def run(self, provider: Provider, start: LaunchCommand, seconds: float = 90) -> "Outcome":
        """Run to the end, like a supervisor, with the prompt on stdin."""
        process = self.popen(start)
        try:
            out, err = process.communicate((start.stdin or "").encode(), timeout=seconds)
        finally:
            end(process)
        return Outcome(read(provider.create_parser(), out), process.returncode, out, err)

    def used(self) -> tuple[int, int, int, int]:
        """Return the stub's usage over all requests: input, output, from and to the cache."""
        usages = [entry["usage"] for entry in self.stub.seen if "usage" in entry]
        names = ("input", "output", "cache_read", "cache_write")
        return tuple(sum(usage[name] for usage in usages) for name in names)


class Outcome:
    def __init__(self, facts: list[ProviderFact], code: int, out: bytes, err: bytes) -> None:
        self.facts, self.code, self.out, self.err = facts, code, out, err

    def of(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def __repr__(self) -> str:
        return f"exit {self.code}, {self.facts}, {self.err[-2_000:].decode(errors='replace')}"


def read(parser: StreamParser, out: bytes) -> list[ProviderFact]:
    facts = [fact for line in out.splitlines() for fact in parser.feed(line)]
    return facts + parser.close()


def total(used: Iterable[UsageFact], *, cached_in_input: bool = False) -> tuple[int, int, int, int]:
    """Return the usage as the stub counts: OpenAI's input includes cached tokens."""
    facts = list(used)
    cache_read = sum(fact.cache_read for fact in facts)
    uncached = sum(fact.input for fact in facts)
    return (
        uncached + (cache_read if cached_in_input else 0),
        sum(fact.output for fact in facts),
        cache_read,
        sum(fact.cache_write for fact in facts),
    )


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process, so that it does not outlive the test."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            pipe.close()
