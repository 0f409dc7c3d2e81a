"""The commands for agents, sessions and the search, on both engines."""

from pathlib import Path

import pytest

from tests.support.cli_runner import Cli
from tests.support.grouped_cases import each_case


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_agent_is_created_edited_and_retired(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "instructions.md").write_text("Be brief.\n", encoding="utf-8")
    result = cli.json(
        "agent", "create", "ada", "--provider", "claude", "--role", "builder", "--model", "m",
        "--instructions", f"@{tmp_path}/instructions.md", "--budget", "$1.5", "--timeout", "10m",
    )  # fmt: skip
    assert (result["name"], result["provider"], result["instructions"]) == (
        "ada",
        "claude",
        "Be brief.\n",
    )
    assert (result["limits"]["budget_micros"], result["limits"]["timeout_ms"]) == (
        1_500_000,
        600_000,
    )
    edited = cli.json("agent", "edit", "ada", "--model", "", "--max-runs", "2", "--admin")
    assert (edited["model"], edited["version"], edited["admin"]) == (None, 2, True)
    assert (edited["limits"]["timeout_ms"], edited["limits"]["max_runs"]) == (600_000, 2)
    assert (
        cli("agent", "edit", "ada", "--role", "builder").out == "No changes; ada is at version 2.\n"
    )
    assert [item["number"] for item in cli.json("agent", "versions", "ada")] == [2, 1]
    assert cli.json("agent", "show", "ada", "--version", "1")["model"] == "m"
    assert cli.json("agent", "show", result["id"][:20])["version"] == 2
    assert cli.error("agent", "create", "ada")["exit_code"] == 4
    assert cli.json("agent", "retire", "ada")["state"] == "retired"
    assert cli.json("agent", "list") == []
    assert len(cli.json("agent", "list", "--retired")) == 1
    assert cli.json("agent", "restore", "ada")["state"] == "active"


def test_tools_are_granted_denied_and_revoked(cli: Cli) -> None:
    cli.json("agent", "create", "ada", "--command", "cat")
    assert cli.json("agent", "grant", "ada", "Bash(git *)")["allowed"] is True
    assert cli("agent", "check", "ada", "Bash(git push)").code == 0
    assert cli("agent", "check", "ada", "Write").code == 1
    assert cli.json("agent", "grant", "ada", "Bash(git push*)", "--deny")["allowed"] is False
    assert cli("agent", "check", "ada", "Bash(git push)").code == 1
    assert len(cli.json("agent", "grants", "ada")) == 2
    cli.json("agent", "revoke", "ada", "Bash(git push*)")
    assert "Tools not denied" in cli("agent", "revoke", "ada", "Bash(git *)").out
    assert cli.error("agent", "revoke", "ada", "Bash(git *)")["exit_code"] == 3


def test_session_goes_through_its_whole_life(cli: Cli, tmp_path: Path) -> None:
    cli.json("project", "register", str(tmp_path))
    for name in ("ada", "ben"):
        cli.json("agent", "create", name)
    session = cli.json(
        "session", "open", "--agent", "ada", "--project", str(tmp_path), "--title", "t"
    )
    id = session["id"]
    assert cli.json("session", "append", id, "user", "find the zebra", "--key", "k")["number"] == 1
    assert cli.json("session", "append", id, "user", "again", "--key", "k")["number"] == 1
    answer = cli.json("session", "append", id[:25], "assistant", "done", "--tool", "Bash")
    assert (answer["number"], answer["agent_id"]) == (2, session["agent_id"])
    assert [turn["number"] for turn in cli.json("session", "turns", id)] == [1, 2]
    newest = cli.json("session", "turns", id, "--newest", "--limit", "1")
    assert [turn["number"] for turn in newest] == [2]
    assert cli.json("session", "state", id, "branch", "main")["value"] == "main"
    cli.json("session", "state", id, "n", "[1]", "--as-json")
    assert cli.json("session", "state", id) == {"branch": "main", "n": [1]}
    assert cli.json("session", "state", id, "n") == {"n": [1]}
    result = cli.json("session", "handoff", id, "ben", "--policy", "last", "--last", "1")
    assert (result["number"], result["at_turn"]) == (1, 2)
    value = cli.json("session", "context", id)
    assert [turn["number"] for turn in value["turns"]] == [2]
    assert len(cli.json("session", "handoffs", id)) == 1
    fork = cli.json("session", "fork", id, "--at", "1", "--title", "another way")
    assert [turn["content"] for turn in cli.json("session", "turns", fork["id"])] == [
        "find the zebra"
    ]
    assert cli.json("session", "clear", id)["cleared_turn"] == 2
    assert cli.json("session", "rename", id, "new")["title"] == "new"
    assert len(cli.json("session", "list", "--project", str(tmp_path))) == 2
    assert cli.json("session", "close", id)["state"] == "closed"
    assert cli.error("session", "append", id, "user", "late")["exit_code"] == 4
    assert len(cli.json("session", "list")) == 1
    assert len(cli.json("session", "list", "--all")) == 2
    assert cli.json("session", "reopen", id)["state"] == "open"
    assert cli.json("session", "retro", id, "--list") == []
    assert cli.json("session", "retro", id)["turns"]["user"] >= 1
    assert len(cli.json("session", "retro", id, "--list")) == 1
    (hit,) = cli.json("search", "the", "zebra", "--project", str(tmp_path))
    assert (hit["subject"], hit["location"], hit["snippet"]) == (id, 1, "find the zebra")
    assert cli.json("search", "zebra", "--kind", "note") == []


@each_case(
    ("arguments", "code"),
    [
        (("session", "show", "ses_0"), 3),
        (("session", "append", "ses_0", "user", "hi"), 3),
        (("session", "open", "--agent", "unknown"), 3),
        (("session", "open", "--reply-to", "nowhere"), 2),
        (("agent", "create", "a b"), 2),
        (("agent", "create", "a", "--budget", "-1"), 2),
        (("agent", "create", "a", "--budget", "nan"), 2),
        (("agent", "create", "a", "--budget", "inf"), 2),
        (("agent", "show", "unknown"), 3),
        (("search", "!!"), 2),
        (("search",), 2),
    ],
)
def test_bad_arguments_have_one_sentence_and_their_exit_code(
    cli: Cli, arguments: tuple[str, ...], code: int
) -> None:
    result = cli(*arguments)
    assert (result.code, result.out) == (code, "")
    assert result.err.count("\n") == 1


def test_people_see_tables_and_sentences(cli: Cli) -> None:
    cli.json("agent", "create", "ada", "--role", "tester")
    id = cli.json("session", "open", "--agent", "ada")["id"]
    cli.json("session", "append", id, "user", "line one\nline two \x1b[31m")
    for arguments in (
        ("agent", "list"),
        ("agent", "show", "ada"),
        ("agent", "versions", "ada"),
        ("agent", "grants", "ada"),
        ("session", "list"),
        ("session", "show", id),
        ("session", "turns", id),
        ("session", "context", id),
        ("session", "state", id),
        ("session", "handoffs", id),
        ("session", "retro", id),
        ("search", "line"),
    ):
        result = cli(*arguments)
        assert (result.code, result.err) == (0, ""), arguments
        assert result.out
        assert "\x1b" not in result.out
