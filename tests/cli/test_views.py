"""Tables and details of runs, agents and sessions that commands print."""

import shutil
from pathlib import Path

import pytest

import corral
from corral.adapters.providers.registry import list_providers
from corral.api.runs import RunOptions
from corral.cli.columns import Column
from corral.cli.commands import resume, run
from corral.cli.render import _distribute_width, _fit_columns
from corral.services.runs.request import RunRequest
from tests.support.cli_runner import Cli
from tests.support.run_factories import add_run


def test_agent_is_shown_with_its_limits_and_tools(cli: Cli) -> None:
    cli.json("agent", "create", "ada", "--budget", "2.5", "--timeout", "1h", "--max-runs", "3")
    cli.json("agent", "grant", "ada", "Bash(git *)")
    cli.json("agent", "grant", "ada", "WebFetch", "--deny")
    output = cli("agent", "show", "ada").out
    assert "limits         $2.50 per run, 1h per run, 3 concurrent runs\n" in output
    assert "allowed tools  Bash(git *)\n" in output
    assert "denied tools   WebFetch\n" in output
    assert "admin          no\n" in output
    assert "TOOL         RULE" in cli("agent", "grants", "ada").out
    assert "number        1\n" in cli("agent", "show", "ada", "--version", "1").out


@pytest.mark.parametrize("verb", ["create", "edit"])
def test_unknown_provider_is_rejected_and_a_role_is_free_text(cli: Cli, verb: str) -> None:
    if verb == "edit":
        cli.json("agent", "create", "bob")
    error = cli.error("agent", verb, "bob", "--provider", "nosuch")
    assert (error["exit_code"], ", ".join(list_providers()) in error["message"]) == (2, True)
    assert cli.json("agent", verb, "bob", "--role", "night watch")["role"] == "night watch"


def test_empty_list_of_runs_says_what_was_searched(cli: Cli) -> None:
    assert "No runs are active" in cli("ps").out
    for options in (["-a"], ["--state", "failed"]):
        output = cli("ps", *options).out
        assert ("No runs match" in output, "active" in output) == (True, False)


def test_runs_and_sessions_name_their_agent(cli: Cli, url: str) -> None:
    ada = cli.json("agent", "create", "ada", "--provider", "scripted")
    cli.json("session", "open", "--agent", "ada")
    values = {"agent_id": ada["id"], "agent_version": 1, "provider": "scripted"}
    with corral.open(url) as store:
        id = add_run(store, "completed", **values)
    assert " ada " in cli("ps", "-a").out
    assert ada["id"] not in cli("session", "list").out
    assert " ada " in cli("session", "list").out
    output = cli("show", id).out
    assert "agent      ada, version 1 (scripted)\n" in output
    assert "supervisor_token" not in output
    assert cli.json("show", id)["agent_id"] == ada["id"]


def test_finished_run_cannot_be_stopped_and_says_why(cli: Cli, url: str) -> None:
    with corral.open(url) as store:
        id = add_run(store, "completed")
    error = cli.error("stop", id)
    assert (error["exit_code"], error["code"]) == (4, "illegal_move")
    assert (error["details"]["id"], error["details"]["state"]) == (id, "completed")


def test_budget_is_set_for_the_current_directory(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = cli.json("project", "register", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for scope in (".", str(tmp_path), f"project:{tmp_path}"):
        assert cli.json("budget", "set", scope, "3")["scope"] == f"project:{project['id']}"


def test_folder_without_transcripts_says_so(cli: Cli, tmp_path: Path) -> None:
    result = cli("import", "claude", str(tmp_path))
    assert (result.code, result.out) == (0, "No transcripts found in that directory.\n")


def test_transcript_import_is_reported_in_one_line(cli: Cli, tmp_path: Path) -> None:
    transcripts = Path(__file__).parent.parent / "fixtures/transcripts"
    shutil.copy(transcripts / "claude.jsonl", tmp_path)
    (tmp_path / "broken.jsonl").write_bytes(b"\xff")
    result = cli("import", "claude", str(tmp_path))
    assert (result.code, result.out.count("\n"), "⏎" in result.out) == (0, 1, False)
    assert "Skipped lines and blocks: " in result.out


def test_command_that_needs_a_shell_is_rejected_for_an_alert(cli: Cli) -> None:
    error = cli.error("alert", "add", "--on", "failed", "--command", "cat >> alert.log")
    assert (error["exit_code"], "Use sh -c" in error["message"]) == (2, True)
    result = cli.json("alert", "add", "--on", "failed", "--command", "sh -c 'cat >>alert.log'")
    assert f"`corral alert test {result['id']}`" not in result["target"]
    text = cli("alert", "add", "--on", "failed", "--command", "true").out
    assert "Test it with `corral alert test alr_" in text


def test_figures_of_stats_are_explained(cli: Cli, url: str) -> None:
    with corral.open(url) as store:
        add_run(store, "completed")
    result = cli("stats")
    assert "OK: completed runs, without cancelled ones." in result.out.splitlines()[-1]
    assert "+ after a cost" in cli("stats", "--help").out
    assert "OK:" not in cli("stats", "--csv").out


def test_resume_takes_the_options_of_run() -> None:
    values = [{option.name for option in item.params} for item in (run.command, resume.command)]
    assert values[0] - values[1] == {"arguments", "session"}
    # Internal callers pass `recorded_turns` (of the session) and `title` (of a task).
    assert set(RunOptions.__annotations__) == set(RunRequest.__struct_fields__) - {
        "recorded_turns",
        "title",
    }


def test_narrow_table_drops_lesser_columns_and_never_the_first() -> None:
    columns = [
        Column("PROJECT", str, drop=2),
        Column("WHAT", lambda _: "x" * 40, shrink="truncate", drop=1),
        Column("PID", lambda _: "12345", drop=3),
    ]
    for width, titles, last in (
        (70, ["PROJECT", "WHAT", "PID"], [9, 40, 5]),
        (30, ["PROJECT", "WHAT", "PID"], [9, 12, 5]),
        (20, ["PROJECT", "WHAT"], [9, 9]),
        (5, ["PROJECT"], [9]),
    ):
        value, rows, widths = _fit_columns(["the-first"], columns, width)
        assert ([column.title for column in value], widths) == (titles, last)
        assert len(rows[0]) == len(titles)
    assert _distribute_width([8, 8], [40, 10], 10) == [16, 10]


def test_hidden_columns_are_named_on_a_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("agent", "create", "ada").code == 0
    assert cli("note", "add", "make needs version 4", "--agent", "ada").code == 0
    assert "Columns hidden" not in cli("note", "search", "make", "--agent", "ada").err
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    result = cli("note", "search", "make", "--agent", "ada")
    assert "Columns hidden" not in result.err
    assert "CONTENT" in result.out
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    result = cli("note", "search", "make", "--agent", "ada")
    assert result.err.splitlines()[-1].startswith("Columns hidden: FOR.")
    assert "Columns hidden" not in cli("note", "search", "make", "--agent", "ada", "--json").err


def test_narrow_run_list_shows_names_or_commands() -> None:
    columns = [
        Column("ID", lambda _: "x" * 30),
        Column("STATE", lambda _: "completed"),
        Column("NAME", lambda name: name),
        Column("WHAT", lambda _: "fix the bug", shrink="truncate", drop=1, replaces="NAME"),
        Column("ENDED", lambda _: "12m ago"),
        Column("EXIT", lambda _: "127"),
    ]
    for given_names, titles in (
        ([None, None], ["ID", "STATE", "WHAT", "ENDED"]),
        ([None, "broken"], ["ID", "STATE", "NAME", "ENDED"]),
    ):
        value, _, widths = _fit_columns(given_names, columns, 60)
        assert [column.title for column in value] == titles
        assert sum(widths) + 2 * (len(widths) - 1) <= 60


def test_unknown_agent_is_answered_with_the_known_ones(cli: Cli) -> None:
    error = cli.error("run", "--agent", "nosuch", "hi")
    assert error["exit_code"] == 3
    assert "`corral agent list`" in error["message"]
    assert "claude, codex" in error["message"]
    assert "plain" not in error["message"]


def test_retrospective_of_little_data_has_no_blanks(cli: Cli) -> None:
    session = cli.json("session", "open", "--title", "t")
    cli.json("session", "append", session["id"], "assistant", "again\n")
    output = cli("session", "retro", session["id"]).out
    assert "last message  again\n" in output
    assert "tools         -\n" in output
