"""Questions, decisions, groups and notes on the command line, on both engines."""

import pytest

from tests.support.cli import Cli


def test_a_question_is_asked_listed_answered_and_answered_too_late(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_AGENT", "ada")
    asked = cli.json("ask", "Merge it?", "--option", "yes", "--option", "no", "--no-wait")
    assert (asked["asker"], asked["state"]) == ("agent:ada", "open")
    assert cli.error("question", "answer", asked["id"], "yes")["exit_code"] == 4
    monkeypatch.delenv("CORRAL_AGENT")
    assert [each["id"] for each in cli.json("question", "list")] == [asked["id"]]
    assert "Merge it?" in cli("question", "list").out
    assert cli.error("question", "answer", asked["id"], "perhaps")["exit_code"] == 2
    assert cli.json("question", "answer", asked["id"], "1")["answer"] == "yes"
    assert cli.error("question", "answer", asked["id"], "no")["exit_code"] == 4
    assert cli("question", "wait", asked["id"]).out == "yes\n"
    assert cli.json("show", asked["id"])["answered_by"] == "user:tester"
    assert cli.json("question", "list") == []
    assert len(cli.json("question", "list", "--all", "--asker", "agent:ada")) == 1


def test_asking_waits_prints_the_answer_and_leaves_no_letter(cli: Cli) -> None:
    first = cli.json("ask", "Which?", "--no-wait", "--key", "k")
    cli.json("question", "answer", first["id"], "this one")
    said = cli("ask", "Which?", "--key", "k")
    assert (said.code, said.out) == (0, "this one\n")
    assert cli.json("mail", "list", "--mailbox", "user:tester") == []


def test_without_an_answer_asking_exits_with_1(cli: Cli) -> None:
    first = cli.json("ask", "Which?", "--no-wait", "--key", "k")
    assert cli.error("ask", "Which?", "--key", "k", "--timeout", "1ms")["exit_code"] == 4
    cli.json("question", "withdraw", first["id"], "--reason", "never mind")
    said = cli("ask", "Which?", "--key", "k")
    assert (said.code, said.out) == (1, "")
    assert "withdrawn" in said.err
