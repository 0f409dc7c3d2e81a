"""`corral init`, and invalid team files of `corral team`."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.services.projects.agent_docs import AGENTS, SECTION, SKILL
from corral.services.projects.config import FILE
from tests.support.cli_runner import Cli
from tests.support.grouped_cases import each_case

# -- init --------------------------------------------------------------------------------------


def test_agent_docs_are_written_once_and_removed_completely(home_cli: Cli, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    page = project / AGENTS
    page.write_text("# Ours\n\nBe kind.\n")
    for did in ("written", "unchanged"):
        result = home_cli.json("init", str(project), "--agents")
        assert [item["result"] for item in result["files"]] == [did, did]
    assert page.read_text().startswith("# Ours\n\nBe kind.\n\n<!--")
    assert page.read_text().count("whoami") == SECTION.count("whoami")
    assert (project / SKILL).read_text().startswith("---\nname: corral\ndescription: >-\n")
    result = home_cli.json("init", str(project), "--no-agents")
    assert [item["result"] for item in result["files"]] == ["removed", "removed"]
    assert page.read_text() == "# Ours\n\nBe kind.\n"
    assert {item.name for item in project.iterdir()} == {AGENTS, ".corral"}


def test_every_written_file_is_listed(home_cli: Cli, tmp_path: Path) -> None:
    code, output, _ = home_cli("init", str(tmp_path), "--agents")
    first, *files = output.splitlines()
    assert (code, first.startswith(f"Registered {tmp_path} as project prj_")) == (0, True)
    assert files == [f"{tmp_path / AGENTS}: written", f"{tmp_path / SKILL}: written"]


def test_empty_project_is_empty_again_after_removal(home_cli: Cli, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    home_cli.json("init", str(project), "--agents")
    home_cli.json("init", str(project), "--no-agents")
    home_cli.json("init", str(project), "--no-agents")
    assert [item.name for item in project.iterdir()] == [".corral"]


def test_project_file_is_applied_completely_or_not_at_all(home_cli: Cli, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    first = home_cli.json("init", str(project))["project"]
    file = project / FILE
    assert (first["command"], first["prompt"]) == (None, None)
    assert tomllib.loads(file.read_text()) == {}, "the written file changes nothing"
    file.write_text(
        """
        command = "claude"
        prompt = "Take the next task."
        [settings]
        tasks.max_started = 2
        "runs.mcp_tools" = true
        """
    )
    updated = home_cli.json("init", str(project))["project"]
    assert (updated["id"], updated["command"]) == (first["id"], "claude")
    assert updated["prompt"] == "Take the next task."

    def setting(name: str) -> Any:
        return home_cli.json("setting", "get", name, "--project", first["id"])["value"]

    assert (setting("tasks.max_started"), setting("runs.mcp_tools")) == (2, True)
    for text, fragment in (
        ("command = ", "not valid TOML"),
        ('comand = "x"', "unknown field"),
        ("command = 3", "Expected `str"),
        ('command = "codex"\n[settings]\ntasks.max_started = 0', "tasks.max_started"),
        ('command = "codex"\n[settings]\nno.such = 1', "no.such"),
    ):
        file.write_text(text)
        code, _, result = home_cli("init", str(project))
        assert (code, fragment in result) == (2, True), result
        assert home_cli.json("project", "show", first["id"])["command"] == "claude"


def test_fifo_in_place_of_the_project_file_does_not_block(home_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / ".corral").mkdir()
    os.mkfifo(tmp_path / ".corral/config.toml")
    error = home_cli.error("init", str(tmp_path))
    assert (error["exit_code"], error["details"]["reason"]) == (4, "not_a_file")


def test_skill_of_others_with_the_same_name_is_left_alone(home_cli: Cli, tmp_path: Path) -> None:
    skill = tmp_path / SKILL
    skill.parent.mkdir(parents=True)
    skill.write_text("mine")
    code, _, warning = home_cli("init", str(tmp_path), "--agents")
    assert (code, "not written by Corral" in warning) == (4, True)
    assert skill.read_text() == "mine"
    assert not (tmp_path / AGENTS).exists()


# -- team --------------------------------------------------------------------------------------

TEAM: dict[str, Any] = {
    "goal": "Everything works.",
    "lead": {"name": "ada", "command": "cat", "role": "planner"},
    "workers": [{"name": "bob", "command": "cat", "limits": {"timeout_ms": 60_000}}],
    "tasks": [{"key": "one", "title": "One"}, {"key": "two", "depends_on": ["one"]}],
}


@each_case(
    ("team", "fragment"),
    [
        ({}, "missing required field `lead`"),
        ({"lead": {"name": "ada"}}, "no provider and no command"),
        (TEAM | {"workers": [TEAM["lead"]]}, "two members"),
        (TEAM | {"boss": 1}, "unknown field `boss`"),
        (TEAM | {"workers": [{"name": "b b", "command": "cat"}]}, "'b b'"),
        (TEAM | {"tasks": [{"key": "a", "depends_on": ["b"]}]}, "depends on 'b'"),
        (TEAM | {"workers": [{"name": "bob", "provider": "gpt"}]}, "'gpt'"),
        (TEAM | {"project": "nowhere"}, "nowhere"),
        (TEAM | {"workers": [{"name": "bob", "provider": "codex"}]}, "codex"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_invalid_team_starts_no_agent(
    cli: Cli,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    team: dict[str, Any],
    fragment: str,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    file = tmp_path / "team.json"
    file.write_text(json.dumps(team))
    code, _, result = cli("team", "start", str(file))
    assert code in (2, 3, 4)
    assert fragment in result
    with corral.open(url) as store:
        assert store.agents.list().items == []
        assert store.tasks.list().items == []
        assert store.runs.list().items == []
