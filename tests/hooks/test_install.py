"""`corral lock install` adds hooks beside existing ones and removes them completely."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.hooks.test_hook import git
from tests.support.cli_runner import Cli

ALL = ("git", "claude", "codex", "copilot", "gemini")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "my project"
    folder.mkdir()
    git(folder, "init", "-q")
    return folder


def read_tree(folder: Path) -> dict[str, tuple[str, int]]:
    """Return every file with its text and mode, except git's own."""
    return {
        str(path.relative_to(folder)): (path.read_text(), path.stat().st_mode)
        for path in folder.rglob("*")
        if path.is_file() and (".git/hooks" in str(path) or "/.git/" not in str(path))
    }


def target_options(*names: str) -> list[str]:
    return [word for name in names for word in ("--target", name)]


def test_hooks_are_installed_once_and_removed_completely(cli: Cli, folder: Path) -> None:
    before = read_tree(folder)
    first = cli.json("lock", "install", str(folder), *target_options(*ALL))
    assert [(entry["target"], entry["did"]) for entry in first] == [(name, "added") for name in ALL]
    result = read_tree(folder)
    repeated = cli.json("lock", "install", str(folder), *target_options(*ALL))
    assert {entry["did"] for entry in repeated} == {"unchanged"}
    assert read_tree(folder) == result
    removed = cli.json("lock", "uninstall", str(folder))
    assert {entry["did"] for entry in removed} == {"removed"}
    assert read_tree(folder) == before
    assert not (folder / ".claude").exists()
    assert {entry["did"] for entry in cli.json("lock", "uninstall", str(folder))} == {"unchanged"}
    assert cli.json("project", "show", str(folder))["dir"] == str(folder)


SETTINGS = """{
    "model": "opus",
    "hooks": {
        "PreToolUse": [
            {
                "matcher": "Bash",
                "hooks": [
                    {
                        "type": "command",
                        "command": "mine \u00e9"
                    }
                ]
            }
        ]
    }
}
"""
SCRIPT = '#!/usr/bin/env bash\n\nset -e\nexec make "$@"\n'


def test_content_of_others_is_preserved_to_the_byte(cli: Cli, folder: Path) -> None:
    (folder / ".claude").mkdir()
    (folder / ".claude" / "settings.local.json").write_text(SETTINGS)
    script = folder / ".git" / "hooks" / "pre-commit"
    script.write_text(SCRIPT)
    script.chmod(0o700)
    before = read_tree(folder)
    cli.json("lock", "install", str(folder))
    result = json.loads((folder / ".claude" / "settings.local.json").read_text())
    existing, added = result["hooks"]["PreToolUse"]
    assert existing["hooks"][0]["command"] == "mine \u00e9"
    assert added["hooks"][0]["command"].endswith(" hook claude pre-tool-use")
    assert script.read_text().endswith(SCRIPT.partition("\n")[2])
    cli.json("lock", "uninstall", str(folder))
    assert read_tree(folder) == before


def test_failed_installation_installs_nothing(cli: Cli, folder: Path) -> None:
    script = folder / ".git" / "hooks" / "pre-commit"
    for text, mode in (("#!/usr/bin/env python3\nprint()\n", 0o755), ("#!/bin/sh\ntrue\n", 0o644)):
        script.write_text(text)
        script.chmod(mode)
        before = read_tree(folder)
        error = cli.error("lock", "install", str(folder), *target_options("claude", "git"))
        assert (error["code"], error["exit_code"]) == ("refused", 4)
        assert read_tree(folder) == before
    script.unlink()
    settings = folder / ".claude" / "settings.local.json"
    settings.parent.mkdir()
    for text in ("{ // mine\n}", "[]", '{"hooks": []}', '{"hooks": {"PreToolUse": {}}}'):
        settings.write_text(text)
        before = read_tree(folder)
        assert cli.error("lock", "install", str(folder))["code"] == "refused"
        assert read_tree(folder) == before
    assert cli.error("lock", "install", str(folder), "--target", "emacs")["exit_code"] == 2
    assert cli.error("lock", "install", str(folder / "none"))["exit_code"] == 2


def test_shared_hooks_are_left_alone(cli: Cli, folder: Path, tmp_path: Path) -> None:
    git(folder, "config", "core.hooksPath", str(tmp_path / "everybodys"))
    error = cli.error("lock", "install", str(folder), "--target", "git")
    assert error["code"] == "refused"
    assert error["details"]["reason"] == "foreign_hooks"


def test_outside_git_only_agent_hooks_are_installed(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (did,) = cli.json("lock", "install", str(tmp_path / "plain"))
    assert did["target"] == "claude"
    assert (
        cli.error("lock", "install", str(tmp_path / "plain"), "--target", "git")["exit_code"] == 4
    )


def test_installed_hooks_reject(
    cli: Cli, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_STORE", url)
    monkeypatch.chdir(folder)
    cli.json("lock", "install", str(folder))
    lock = cli.json("lock", "acquire", "a.py", "--agent", "ada")
    (folder / "a.py").write_text("x")
    git(folder, "add", "-A")
    commit = git(folder, "commit", "-q", "-m", "x")
    assert commit.returncode != 0
    assert "agent:ada holds a.py" in commit.stderr
    settings = json.loads((folder / ".claude" / "settings.local.json").read_text())
    command = settings["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
    values = {"tool_name": "Edit", "tool_input": {"file_path": "a.py"}, "cwd": str(folder)}
    process = subprocess.run(
        ["/bin/sh", "-c", command],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert process.returncode == 2
    assert "agent:ada holds a.py" in process.stderr
    cli.json("lock", "release", lock["id"], "--agent", "ada")
    assert git(folder, "commit", "-q", "-m", "x").returncode == 0
