"""`corral task`, `delegation`, `plan` and `progress`, as a user calls them."""

import json
from pathlib import Path

import pytest

from tests.support.cli_runner import Cli, CliResult

GRAPH = """
tasks:
  - key: ship
    depends_on: [build]
  - key: build
    role: builder
    title: Build it
    files: [src/app.py]
"""


@pytest.fixture
def team(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    ok(cli, "project", "register", ".")
    for name in ("ada", "rev"):
        ok(cli, "agent", "create", name)
    (folder / "graph.yaml").write_text(GRAPH)
    return folder


def ok(cli: Cli, *words: str) -> CliResult:
    result = cli(*words)
    assert result.code == 0, result.err
    return result


def fails(cli: Cli, code: int, *words: str) -> CliResult:
    result = cli(*words)
    assert result.code == code, result
    return result


def test_graph_from_a_file_is_done_by_commands(cli: Cli, team: Path) -> None:
    assert "Declared 2 tasks, 1 ready" in ok(cli, "task", "declare", "graph.yaml").out
    taken = cli.json("task", "claim", "--agent", "ada")
    assert (taken["key"], taken["state"], taken["depends_on"]) == ("build", "running", [])
    assert {"id", "role", "title", "agent_id", "evidence", "reason"} <= {*taken}
    refused = fails(cli, 4, "task", "accept", "build", "--agent", "ada")
    assert refused.err.count("\n") == 1
    shown = cli.json(
        "task",
        "submit",
        "build",
        "--agent",
        "ada",
        "--commit",
        "abc",
        "--text",
        "done",
        "--ran",
        "make test",
        "0",
    )
    assert shown["evidence"]["commands"] == [
        {"command": "make test", "exit_code": 0, "output": None}
    ]
    assert "build accepted" in ok(cli, "task", "accept", "build", "--agent", "rev").out
    assert [t["state"] for t in cli.json("task", "list")] == ["ready", "done"]
    assert "ship" in ok(cli, "task", "graph").out
    assert cli.json("task", "counts") == {"done": 1, "ready": 1}


def test_agent_is_identified_by_its_environment_only(
    cli: Cli, team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(cli, "task", "declare", "graph.yaml")
    monkeypatch.setenv("CORRAL_AGENT", "ada")
    refused = fails(cli, 4, "task", "claim", "--agent", "rev")
    assert "Agent ada cannot act as" in refused.err
    assert cli.json("task", "claim")["key"] == "build"
    ok(cli, "task", "submit", "build", "--text", "done")
    again = cli("task", "submit", "build", "--text", "better")
    assert (again.code, "first evidence is kept" in again.out) == (0, True)
    refused = fails(cli, 4, "task", "accept", "build")
    assert "cannot review" in refused.err
    fails(cli, 4, "task", "cancel", "ship")
    ok(cli, "progress", "report", "half of it", "--percent", "50", "--task", "build")
    assert cli.json("progress", "list")[0]["percent"] == 50
    (team / "plan.json").write_text(json.dumps(["look", "mend"]))
    ok(cli, "plan", "set", "plan.json")
    assert [step["content"] for step in cli.json("plan", "show", "ada")["entries"]] == [
        "look",
        "mend",
    ]


def test_bad_input_is_one_sentence_with_its_exit_code(cli: Cli, team: Path) -> None:
    (team / "bad.yaml").write_text("tasks: [a: b: c")
    (team / "bomb.yaml").write_text("- &a {key: x}\n- *a\n")
    (team / "cycle.json").write_text(
        '[{"key":"a","depends_on":["b"]},{"key":"b","depends_on":["a"]}]'
    )
    for words, code in (
        (("task", "declare", "bad.yaml"), 2),
        (("task", "declare", "bomb.yaml"), 2),
        (("task", "declare", "cycle.json"), 2),
        (("task", "declare", "missing.yaml"), 2),
        (("task", "claim"), 2),
        (("task", "claim", "--agent", "ada"), 3),
        (("task", "claim", "--agent", "nobody"), 3),
        (("task", "show", "nothing"), 3),
        (("delegation", "show", "dlg_zz"), 3),
        (("delegation", "delegate", "ada", ""), 2),
        (("plan", "show", "ada"), 3),
        (("progress", "report", "x", "--agent", "ada", "--percent", "200"), 2),
    ):
        answer = fails(cli, code, *words)
        assert answer.err.count("\n") == 1, answer.err
        assert "Traceback" not in answer.err
    error = cli.error("task", "declare", "bad.yaml")
    assert (error["exit_code"], error["details"]["reason"]) == (2, "not_json_or_yaml")
    assert "13" in error["message"]
    assert cli.json("task", "list") == []


def test_lead_steers_by_commands(cli: Cli, team: Path) -> None:
    ok(cli, "task", "declare", "graph.yaml")
    for words, state in (
        (("pause", "build"), "paused"),
        (("resume", "build"), "ready"),
        (("cancel", "build", "--reason", "no"), "cancelled"),
        (("skip", "build"), "skipped"),
        (("reopen", "build"), "ready"),
        (("undepend", "ship", "build"), "ready"),
        (("depend", "ship", "build"), "pending"),
        (("reassign", "build", "ada"), "ready"),
    ):
        assert cli.json("task", *words)["state"] == state
    ok(cli, "task", "edit", "build", "--priority", "7")
    value = cli.json("task", "delegate", "build", "ada", "--within", "1h")
    assert value["to_mailbox"] == "agent:ada"
    assert [item["id"] for item in cli.json("delegation", "list")] == [value["id"]]
    assert cli.json("delegation", "cancel", value["id"])[0]["state"] == "cancelled"
    ok(cli, "task", "claim", "--agent", "ada", "--key", "build")
    ok(cli, "task", "release", "build")
    ok(cli, "task", "claim", "--agent", "ada", "--key", "build")
    ok(cli, "task", "fail", "build", "no way")
    assert cli.json("task", "retry", "build")["state"] == "ready"
    ok(cli, "task", "skip", "build")
    assert "Archived" in ok(cli, "task", "archive", "build").out
    result = cli.json("task", "apply", "bugfix", "the login", "--key", "login")
    assert [task["key"] for task in result] == ["login/reproduce", "login/fix", "login/review"]
    assert "bugfix" in ok(cli, "task", "templates").out
    text = cli.json("delegation", "delegate", "ada", "find out")
    assert cli.json("delegation", "finish", text["id"], "42", "--agent", "ada")["result"] == "42"


def test_check_is_run_by_hand(cli: Cli, team: Path) -> None:
    ok(cli, "task", "add", "A", "Make it", "--check", "test -e made")
    for item in (False, True):
        ok(cli, "task", "claim", "--agent", "ada")
        ok(cli, "task", "submit", "A", "--agent", "ada", "--text", "done")
        if item:
            (team / "made").touch()
        result = cli.json("task", "check") if item else [cli.json("task", "check", "A")]
        assert [task["state"] for task in result] == ["done" if item else "ready"]
    assert "No checks are pending" in ok(cli, "task", "check").out
