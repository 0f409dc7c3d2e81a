"""The commands for questions, decisions, groups and notes, on both engines."""

from pathlib import Path

import pytest

from tests.support.cli_runner import Cli


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_question_is_asked_listed_answered_and_closed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_AGENT", "ada")
    question = cli.json("ask", "Merge it?", "--option", "yes", "--option", "no", "--no-wait")
    assert (question["asker"], question["state"]) == ("agent:ada", "open")
    assert cli.error("question", "answer", question["id"], "yes")["exit_code"] == 4
    monkeypatch.delenv("CORRAL_AGENT")
    assert [item["id"] for item in cli.json("question", "list")] == [question["id"]]
    assert "Merge it?" in cli("question", "list").out
    assert cli.json()["open_questions"] == 1
    assert "`corral question list`" in cli().out
    assert cli.error("question", "answer", question["id"], "perhaps")["exit_code"] == 2
    assert cli.json("question", "answer", question["id"], "1")["answer"] == "yes"
    assert cli.error("question", "answer", question["id"], "no")["exit_code"] == 4
    assert cli("question", "wait", question["id"]).out == "yes\n"
    assert cli.json("show", question["id"])["answered_by"] == "user:tester"
    assert cli.json("question", "list") == []
    assert len(cli.json("question", "list", "--all", "--asker", "agent:ada")) == 1


def test_ask_waits_prints_the_answer_and_leaves_no_letter(cli: Cli) -> None:
    first = cli.json("ask", "Which?", "--no-wait", "--key", "k")
    cli.json("question", "answer", first["id"], "this one")
    result = cli("ask", "Which?", "--key", "k")
    assert (result.code, result.out) == (0, "this one\n")
    assert cli.json("mail", "list", "--mailbox", "user:tester") == []


def test_ask_without_an_answer_exits_with_1(cli: Cli) -> None:
    first = cli.json("ask", "Which?", "--no-wait", "--key", "k")
    assert cli.error("ask", "Which?", "--key", "k", "--timeout", "1ms")["exit_code"] == 4
    cli.json("question", "withdraw", first["id"], "--reason", "never mind")
    result = cli("ask", "Which?", "--key", "k")
    assert (result.code, result.out) == (1, "")
    assert "withdrawn" in result.err


def test_decision_is_recorded_proposed_and_reviewed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_AGENT", "ada")
    decision = cli.json(
        "decision", "record", "Use msgspec", "--rationale", "fast", "--alternative", "pydantic",
        "--category", "dependency",
    )  # fmt: skip
    assert (decision["state"], decision["author"]) == ("recorded", "agent:ada")
    gates = [
        cli.json("decision", "record", "Drop it", "--propose", "--key", f"k{n}") for n in range(2)
    ]
    ids = [gate["id"] for gate in gates]
    assert cli.error("decision", "confirm", ids[0])["exit_code"] == 4
    monkeypatch.delenv("CORRAL_AGENT")
    assert [item["id"] for item in cli.json("decision", "list", "--proposed")] == ids[::-1]
    assert "Drop it" in cli("decision", "list").out
    assert cli.json()["proposed_decisions"] == 2
    assert "`corral decision list --proposed`" in cli().out
    assert cli.error("decision", "wait", ids[0], "--timeout", "1ms")["exit_code"] == 4
    confirmed = cli.json("decision", "confirm", *ids, "--reason", "go")
    assert [item["state"] for item in confirmed] == ["confirmed", "confirmed"]
    assert cli.error("decision", "reject", ids[0])["exit_code"] == 4
    assert cli("decision", "wait", ids[0]).code == 0
    monkeypatch.setenv("CORRAL_AGENT", "ada")
    result = cli("decision", "record", "Drop it", "--propose", "--key", "k0", "--wait")
    assert (result.code, result.out) == (0, f"{ids[0]} is confirmed (go).\n")
    assert len(cli.json("mail", "list", "--mailbox", "agent:ada")) == 1
    assert cli.json("show", ids[1])["decided_by"] == "user:tester"
    assert cli.json("decision", "show", ids[1])["state"] == "confirmed"


def test_rejected_proposal_exits_with_1(cli: Cli) -> None:
    gate = cli.json("decision", "record", "Drop it", "--propose")
    cli.json("decision", "dismiss", gate["id"])
    assert cli("decision", "wait", gate["id"]).code == 1


def test_group_is_created_posted_in_read_and_archived(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.json("agent", "create", "ada", "--role", "builder")
    result = cli.json("group", "create", "build", "--role", "builder")
    members = [item["name"] for item in cli.json("group", "members", "build")]
    assert members == ["agent:ada", "user:tester"]
    assert cli.json("group", "post", "build", "hello", "--key", "k")["number"] == 1
    assert cli.json("group", "post", "build", "hello", "--key", "k")["number"] == 1
    monkeypatch.setenv("CORRAL_AGENT", "ada")
    assert [item["unread"] for item in cli.json("group", "list", "--mine")] == [1]
    assert "hello" in cli("group", "read", "build").out
    assert cli("group", "read", "build").out == "No unread posts.\n"
    assert cli.json("mail", "list", "--mailbox", "agent:ada") == []
    assert cli.json("group", "react", "build", "1", "👍")["reactions"] == {"👍": ["agent:ada"]}
    assert cli.json("group", "react", "build", "1", "👍", "--remove")["reactions"] == {}
    assert cli.json("group", "post", "build", "yes", "--reply-to", "1")["reply_to"] == 1
    monkeypatch.delenv("CORRAL_AGENT")
    assert [item["text"] for item in cli.json("group", "read", "build")] == ["yes"]
    assert len(cli.json("group", "read", "build", "--all")) == 2
    newest = cli.json("group", "read", "build", "--newest", "--limit", "1")
    assert [item["number"] for item in newest] == [2]
    cli.json("group", "join", "build", "user:ben")
    cli.json("group", "leave", "build", "user:ben")
    assert cli.error("group", "post", "nowhere", "x")["exit_code"] == 3
    assert cli.json("group", "archive", "build")["state"] == "archived"
    assert cli.error("group", "post", result["id"], "x")["exit_code"] == 4
    assert cli.json("group", "list") == []
    assert len(cli.json("group", "list", "--all")) == 1


def test_message_goes_to_one_agent_or_to_all(cli: Cli) -> None:
    cli.json("agent", "create", "ada")
    cli.json("group", "send", "agent:ada", "to you")
    cli.json("group", "broadcast", "to all")
    letters = cli.json("mail", "list", "--mailbox", "agent:ada")
    assert [letter["body"]["text"] for letter in letters] == ["to you", "to all"]


def test_notes_of_the_current_project_are_searched(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "No matching notes" in cli("note", "search", "make").out, (
        "there is no note without a project"
    )
    cli.json("project", "register", ".")
    cli.json("note", "add", "make needs version 4", "--project", ".")
    assert len(cli.json("note", "search", "make")) == 1


def test_notes_are_added_found_printed_superseded_and_forgotten(cli: Cli) -> None:
    cli.json("agent", "create", "ada")
    first = cli.json("note", "add", "deploy needs a token", "--key", "deploy", "--category", "core")
    cli.json("note", "add", "ada likes tests", "--agent", "ada", "--confidence", "50")
    assert cli.json("note", "search", "deploy")[0]["note"]["id"] == first["id"]
    assert [item["scope"] for item in cli.json("note", "list", "--agent", "ada")] == ["agent:ada"]
    assert len(cli.json("note", "list")) == 2
    part = cli("note", "section", "write tests", "--agent", "ada").out
    assert part.startswith("[corral:")
    assert "ada likes tests" in part
    assert cli.json("note", "show", first["id"])["uses"] == 1
    second = cli.json("note", "supersede", first["id"], "deploy needs no token")
    assert second["supersedes"] == first["id"]
    assert cli.json("search", "token", "--kind", "note")[0]["subject"] == second["id"]
    assert cli.json("note", "forget", second["id"])["id"] == second["id"]
    assert cli.error("note", "show", second["id"])["exit_code"] == 3
    assert cli.error("note", "add", "x", "--confidence", "300")["exit_code"] == 2
