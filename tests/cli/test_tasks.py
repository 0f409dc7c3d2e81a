"""The commands `corral task`, `delegation`, `plan` and `progress`."""

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
    run_ok(cli, "project", "register", ".")
    for name in ("ada", "rev"):
        run_ok(cli, "agent", "create", name)
    (folder / "graph.yaml").write_text(GRAPH)
    return folder


def run_ok(cli: Cli, *arguments: str) -> CliResult:
    result = cli(*arguments)
    assert result.code == 0, result.err
    return result


def run_failing(cli: Cli, code: int, *arguments: str) -> CliResult:
    result = cli(*arguments)
    assert result.code == code, result
    return result


def test_archive_needs_either_a_task_or_all_ended_ones(cli: Cli, team: Path) -> None:
    run_ok(cli, "task", "add", "build")
    run_ok(cli, "task", "cancel", "build")
    for arguments in ([], ["build", "--ended"]):
        run_failing(cli, 2, "task", "archive", *arguments)
    assert "Archived 1 " in run_ok(cli, "task", "archive", "--ended").out


def test_graph_from_a_file_is_done_by_commands(cli: Cli, team: Path) -> None:
    assert "Declared 2 tasks, 1 ready" in run_ok(cli, "task", "declare", "graph.yaml").out
    task = cli.json("task", "claim", "--agent", "ada")
    assert (task["key"], task["state"], task["depends_on"]) == ("build", "running", [])
    assert {"id", "role", "title", "agent_id", "evidence", "reason"} <= {*task}
    failure = run_failing(cli, 4, "task", "accept", "build", "--agent", "ada")
    assert failure.err.count("\n") == 1
    submitted = cli.json(
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
    assert submitted["evidence"]["commands"] == [
        {"command": "make test", "exit_code": 0, "output": None}
    ]
    assert "build accepted" in run_ok(cli, "task", "accept", "build", "--agent", "rev").out
    assert [t["state"] for t in cli.json("task", "list")] == ["ready", "done"]
    assert "ship" in run_ok(cli, "task", "graph").out
    assert cli.json("task", "counts") == {"done": 1, "ready": 1}


def test_agent_is_identified_by_its_environment_only(
    cli: Cli, team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ok(cli, "task", "declare", "graph.yaml")
    monkeypatch.setenv("CORRAL_AGENT", "ada")
    failure = run_failing(cli, 4, "task", "claim", "--agent", "rev")
    assert "Agent ada cannot act as" in failure.err
    assert cli.json("task", "claim")["key"] == "build"
    run_ok(cli, "task", "submit", "build", "--text", "done")
    resubmitted = cli("task", "submit", "build", "--text", "better")
    assert (resubmitted.code, "first evidence is kept" in resubmitted.out) == (0, True)
    failure = run_failing(cli, 4, "task", "accept", "build")
    assert "cannot review" in failure.err
    run_failing(cli, 4, "task", "cancel", "ship")
    run_ok(cli, "progress", "report", "half of it", "--percent", "50", "--task", "build")
    assert cli.json("progress", "list")[0]["percent"] == 50
    (team / "plan.json").write_text(json.dumps(["look", "fix"]))
    run_ok(cli, "plan", "set", "plan.json")
    assert [step["content"] for step in cli.json("plan", "show", "ada")["entries"]] == [
        "look",
        "fix",
    ]


def test_bad_input_is_one_sentence_with_its_exit_code(cli: Cli, team: Path) -> None:
    (team / "bad.yaml").write_text("tasks: [a: b: c")
    (team / "bomb.yaml").write_text("- &a {key: x}\n- *a\n")
    (team / "cycle.json").write_text(
        '[{"key":"a","depends_on":["b"]},{"key":"b","depends_on":["a"]}]'
    )
    for arguments, code in (
        (("task", "declare", "bad.yaml"), 2),
        (("task", "declare", "bomb.yaml"), 2),
        (("task", "declare", "cycle.json"), 2),
        (("task", "declare", "missing.yaml"), 2),
        (("task", "claim"), 2),
        (("task", "claim", "--agent", "ada"), 3),
        (("task", "claim", "--agent", "unknown"), 3),
        (("task", "show", "nothing"), 3),
        (("delegation", "show", "dlg_zz"), 3),
        (("delegation", "create", "ada", ""), 2),
        (("plan", "show", "ada"), 3),
        (("progress", "report", "x", "--agent", "ada", "--percent", "200"), 2),
    ):
        answer = run_failing(cli, code, *arguments)
        assert answer.err.count("\n") == 1, answer.err
        assert "Traceback" not in answer.err
    error = cli.error("task", "declare", "bad.yaml")
    assert (error["exit_code"], error["details"]["reason"]) == (2, "not_json_or_yaml")
    assert "13" in error["message"]
    assert cli.json("task", "list") == []


def test_lead_steers_by_commands(cli: Cli, team: Path) -> None:
    run_ok(cli, "task", "declare", "graph.yaml")
    for arguments, state in (
        (("pause", "build"), "paused"),
        (("resume", "build"), "ready"),
        (("cancel", "build", "--reason", "no"), "cancelled"),
        (("skip", "build"), "skipped"),
        (("reopen", "build"), "ready"),
        (("undepend", "ship", "build"), "ready"),
        (("depend", "ship", "build"), "pending"),
        (("reassign", "build", "ada"), "ready"),
    ):
        assert cli.json("task", *arguments)["state"] == state
    run_ok(cli, "task", "edit", "build", "--priority", "7")
    value = cli.json("task", "delegate", "build", "ada", "--deadline", "1h")
    assert value["to_mailbox"] == "agent:ada"
    assert [item["id"] for item in cli.json("delegation", "list")] == [value["id"]]
    assert cli.json("delegation", "cancel", value["id"])[0]["state"] == "cancelled"
    run_ok(cli, "task", "claim", "--agent", "ada", "--key", "build")
    run_ok(cli, "task", "release", "build")
    run_ok(cli, "task", "claim", "--agent", "ada", "--key", "build")
    run_ok(cli, "task", "fail", "build", "no way")
    assert cli.json("task", "retry", "build")["state"] == "ready"
    run_ok(cli, "task", "skip", "build")
    assert "Archived" in run_ok(cli, "task", "archive", "build").out
    result = cli.json("task", "apply", "bugfix", "the login", "--key", "login")
    assert [task["key"] for task in result] == ["login/reproduce", "login/fix", "login/review"]
    assert "bugfix" in run_ok(cli, "task", "templates").out
    text = cli.json("delegation", "create", "ada", "find out")
    assert cli.json("delegation", "finish", text["id"], "42", "--agent", "ada")["result"] == "42"


def test_check_is_run_by_hand(cli: Cli, team: Path) -> None:
    run_ok(cli, "task", "add", "A", "Make it", "--check", "test -e made")
    for item in (False, True):
        run_ok(cli, "task", "claim", "--agent", "ada")
        run_ok(cli, "task", "submit", "A", "--agent", "ada", "--text", "done")
        if item:
            (team / "made").touch()
        result = cli.json("task", "check") if item else [cli.json("task", "check", "A")]
        assert [task["state"] for task in result] == ["done" if item else "ready"]
    assert "No checks are pending" in run_ok(cli, "task", "check").out
