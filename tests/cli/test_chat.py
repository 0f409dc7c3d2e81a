"""The commands for channels, places, wirings, destinations, messages and `corral chat`."""

import io
import json
import os
import signal
from pathlib import Path

import pytest

import corral
from corral.adapters.channels.contract import IncomingEvent
from corral.api import Corral
from tests.support.cli_runner import Cli
from tests.support.errors import because
from tests.support.fake_channels import register_adapters
from tests.support.home import Home, wait_until
from tests.support.mcp_clients import Agent, ToolError

pytestmark = pytest.mark.slow


def test_channel_is_added_wired_previewed_and_removed(
    cli: Cli, store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_adapters(monkeypatch)
    cli.json("agent", "create", "ada", "--provider", "scripted")
    channel = cli.json("channel", "add", "chat", "fake", "--policy", "public")
    assert cli.json("channel", "test", "chat")["ok"] is True
    assert "chat works" in cli("channel", "test", "chat").out
    assert cli.error("channel", "add", "chat", "fake")["exit_code"] == 4
    assert cli.error("channel", "add", "x", "pigeon")["exit_code"] == 2
    assert cli.error("channel", "add", "x", "fake", "--config", "colour")["exit_code"] == 2
    assert cli.error("channel", "show", "nowhere")["exit_code"] == 3
    event = IncomingEvent(event_id="1", place="room", sender="ann", sender_name="Ann", text="hello")
    store.messages.receive("chat", event)
    (place,) = cli.json("place", "list", "--channel", "chat")
    assert cli.json("place", "show", "chat/room")["id"] == place["id"]
    assert cli.json("place", "policy", place["id"], "strict")["policy"] == "strict"
    assert cli.json("place", "policy", place["id"], "channel")["policy"] is None
    assert cli.json("place", "block", place["id"])["state"] == "blocked"
    assert cli.json("place", "unblock", place["id"])["state"] == "open"
    wiring = cli.json(
        "wiring",
        "add",
        "ada",
        "--place",
        place["id"],
        "--trigger",
        "mention",
        "--session-mode",
        "thread",
    )
    assert (wiring["trigger"], wiring["mode"]) == ("mention", "thread")
    (route,) = cli.json("wiring", "test", place["id"], "@ada hello")
    assert route["wakes"] is True
    (route,) = cli.json("wiring", "test", place["id"], "hello")
    assert route["wakes"] is False
    assert cli.json("wiring", "test", "chat/elsewhere", "hello") == []
    assert cli("wiring", "list").out.split()[11:14] == ["ada", "room", "mention"]
    assert [result["id"] for result in cli.json("wiring", "list")] == [wiring["id"]]
    edited = cli.json("wiring", "edit", wiring["id"], "--trigger", "pattern", "--pattern", "deploy")
    assert (edited["id"], edited["pattern"], edited["mode"]) == (
        wiring["id"],
        "deploy",
        "thread",
    )
    edited = cli.json("wiring", "edit", wiring["id"], "--priority", "5")
    assert (edited["trigger"], edited["pattern"], edited["mode"], edited["priority"]) == (
        "pattern",
        "deploy",
        "thread",
        5,
    )
    assert cli.error("wiring", "edit", wiring["id"], "--trigger", "command")["exit_code"] == 2
    assert "No messages wait" in cli("message", "awaiting-approval").out
    (sender,) = cli.json("sender", "list")
    approved = cli.json("sender", "approve", sender["id"], "--person", "ann", "--role", "admin")
    assert (approved["state"], approved["person"]) == ("known", "ann")
    assert cli.json("person", "list")[0]["role"] == "admin"
    assert cli.json("person", "set", "ann", "--role", "owner")["role"] == "owner"
    assert cli.json("sender", "block", sender["id"])["state"] == "blocked"
    (destination,) = cli.json("destination", "list", "--agent", "ada")
    assert destination["name"] == "room"
    assert cli.json("destination", "revoke", "ada", "room")["state"] == "revoked"
    grant = cli.json("destination", "grant", "ada", place["id"], "--name", "crew")
    assert grant["name"] == "crew"
    (item,) = cli.json("message", "post", place["id"], "news for all")
    monkeypatch.setenv("CORRAL_AGENT", "ada")
    (message,) = cli.json("message", "send", "hello", "--to", "crew")
    assert cli.error("message", "send", "hello", "--to", "elsewhere")["exit_code"] == 4
    monkeypatch.delenv("CORRAL_AGENT")
    assert cli.error("message", "send", "hello", "--to", "crew")["exit_code"] == 2
    messages = cli.json("message", "list", "--place", place["id"])
    assert [result["id"] for result in messages][:2] == [message["id"], item["id"]]
    assert cli.json("message", "show", message["id"])["state"] == "queued"
    for record in (channel, place, sender, wiring, grant, message):
        assert cli.json("show", record["id"])["id"] == record["id"]
    assert cli.json("wiring", "remove", wiring["id"])["state"] == "removed"
    assert cli.json("channel", "remove", "chat")["state"] == "removed"
    assert cli.json("channel", "list") == []
    assert [result["id"] for result in cli.json("channel", "list", "--all")] == [channel["id"]]


def test_chat_in_a_terminal_says_how_to_leave(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    cli.json("agent", "create", "ada", "--provider", "scripted")
    for stdin, result in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stdin", stdin)
        value = cli("chat")
        assert (value.code, "with ada" in value.err and "Ctrl-D" in value.err) == (0, result)


def test_chat_needs_an_agent(cli: Cli) -> None:
    assert cli.error("chat", "--once", "hello")["exit_code"] == 3
    for name in ("ada", "ben"):
        cli.json("agent", "create", name, "--provider", "scripted")
    assert cli.error("chat", "--once", "hello")["exit_code"] == 2
    assert cli.error("chat", "--agent", "tom", "--once", "hello")["exit_code"] == 3
    assert cli.error("chat", "--agent", "ada", "--once", "  ")["exit_code"] == 2


def test_question_in_the_terminal_is_answered_and_the_chat_continues(home: Home) -> None:
    home.json("agent", "create", "ada", "--provider", "scripted", "--json")
    value = home.corral("chat", "--once", "say hello there")
    assert (value.returncode, value.stdout.decode().strip()) == (0, "hello there")
    result = json.loads(home.corral("chat", "--once", "say again", "--json").stdout)
    assert (result["answers"], result["answered"]) == (["again"], True)
    sessions = home.json("session", "list", "--json")
    assert len(sessions) == 1, "it is one conversation"
    typed = home.corral("chat", input=b"say one\n/status\n\n")
    lines = typed.stdout.decode().splitlines()
    assert lines[0] == "one"
    assert "idle" in lines[1]
    (sender,) = home.json("sender", "list", "--json")
    actors = {event["actor"] for event in home.json("events", "--json")}
    assert f"user:{sender['person']}" in actors, "one name, so that the owner can answer"


def test_plain_command_replies_with_its_output(home: Home) -> None:
    home.json("agent", "create", "echo", "--command", "cat", "--json")
    result = home.corral("chat", "--once", "hello")
    assert (result.returncode, result.stdout.decode().strip()) == (0, "hello")


def test_reply_survives_the_client_that_asked(home: Home) -> None:
    answers = "until [ -e go ]; do sleep 0.05; done; echo still here"
    home.json("agent", "create", "ada", "--command", f"sh -c '{answers}'", "--json")
    with home.begin("chat", "--once", "are you there?") as client:
        wait_until(
            lambda: home.json("ps", "--state", "running", "--json") or None,
            "the agent runs",
        )
        os.kill(client.pid, signal.SIGKILL)
    (home.work / "go").touch()
    wait_until(lambda: home.json("ps", "--json") == [] or None, "the agent has ended")
    result = home.corral("chat", input=b"\n")
    assert result.stdout.decode().splitlines() == ["still here"]
    assert home.corral("chat", input=b"\n").stdout == b"", "it is shown once"


def test_failing_agent_ends_the_wait_with_a_reason(home: Home) -> None:
    with home.store() as store:
        store.agents.create("ada", provider="scripted")
        store.settings.set("mail.max_attempts", 2)
        store.settings.set("mail.backoff_ms", [500])
    result = home.corral("chat", "--once", "crash 3")
    assert result.returncode == 1
    assert result.stderr.count(b"ada failed: ") == 1, "the last failure is reported in the chat"
    assert b"exit code 3" in result.stderr
    assert b"could not be answered" in result.stdout


def test_agent_sends_host_requests_and_people_decide(
    cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.json("agent", "create", "ada", "--provider", "scripted")
    monkeypatch.setenv("CORRAL_AGENT", "ada")
    arguments = ("request", "ask", "create_agent", "name=helper", "instructions=Help.")
    request = cli.json(*arguments)
    assert cli.error("request", "ask", "create_agent", "name")["exit_code"] == 2
    assert cli.error(*arguments, "--agent", "ben")["exit_code"] == 4
    assert cli.error("question", "answer", request["question_id"], "yes")["exit_code"] == 4
    monkeypatch.delenv("CORRAL_AGENT")
    assert "Help." in cli("question", "show", request["question_id"]).out
    cli.json("question", "answer", request["question_id"], "yes")
    with corral.open(url) as daemon:  # which uses the command line's clock
        daemon.internal.chat.run_upkeep()
    assert cli.json("request", "show", request["id"])["state"] == "done"
    assert cli.json("agent", "show", "helper")["name"] == "helper"
    secret = cli.json("request", "ask", "secret", "name=key", "reason=mails", "--agent", "ada")
    assert "Notified 1 agent" in cli("secret", "set", "key", "env:KEY").out
    assert cli.json("request", "show", secret["id"])["state"] == "done"
    other = cli.json("request", "ask", "secret", "name=other", "reason=x", "--agent", "ada")
    assert cli.json("request", "withdraw", other["id"])["state"] == "refused"
    assert len(cli.json("request", "list", "--agent", "ada")) == 3
    assert cli.error("request", "show", "req_zz")["exit_code"] == 3


def test_agent_writes_to_another_and_gets_a_reply(cli: Cli, store: Corral) -> None:
    for name in ("ada", "ben"):
        cli.json("agent", "create", name, "--provider", "scripted")
    letter = cli.json("mail", "write", "which port?", "--to", "ben", "--agent", "ada")
    assert (letter["mailbox"], letter["sender"]) == ("agent:ben", "agent:ada")
    answer = cli.json("mail", "write", "8080", "--reply-to", letter["id"], "--agent", "ben")
    assert answer["mailbox"] == "agent:ada"
    wake_letter = cli.json("mail", "write", "go", "--to", "ben", "--wake", "--agent", "ada")
    assert wake_letter["mailbox"].startswith("session:")
    assert cli.error("mail", "write", "x", "--agent", "ada")["exit_code"] == 2
    assert cli.error("mail", "write", "x", "--to", "zoe", "--agent", "ada")["exit_code"] == 3


def test_agent_sends_files_by_command_and_by_tool(
    cli: Cli, store: Corral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_adapters(monkeypatch)
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    store.agents.create("ada", provider="scripted", workspace=str(work))
    store.channels.add("chat", "fake", policy="public")
    place = store.places.register("chat", "room")
    store.destinations.grant("ada", place.id, name="crew")
    monkeypatch.setenv("CORRAL_AGENT", "ada")
    monkeypatch.chdir(work)
    value, file = cli.json("message", "send", "Here.", "--to", "crew", "--file", "a.txt")
    assert (value["kind"], file["kind"], file["text"]) == ("text", "file", "a.txt")
    (file_message,) = cli.json("message", "send", "--to", "crew", "--file", str(work / "a.txt"))
    assert file_message["data"]["file"]["sha256"] == file["data"]["file"]["sha256"]
    for entry, code in (
        (("--file", "../b.txt"), 4),
        (("--file", "never.txt"), 2),
        (("--file", "a.txt", "--edit", file_message["id"]), 2),
        ((), 2),
    ):
        assert cli.error("message", "send", "--to", "crew", *entry)["exit_code"] == code
    tool = Agent(store, "ada")
    result = tool("send", to="crew", text="By a tool.", files=["a.txt"], idempotency_key="k")
    repeated = tool("send", to="crew", text="By a tool.", files=["a.txt"], idempotency_key="k")
    assert (result["to"], result["letter"]) == (place.id, repeated["letter"])
    with pytest.raises(ToolError, check=because("outside_folder")):
        tool("send", to="crew", text="x", files=["../b.txt"])
    with pytest.raises(ToolError, match="chats only"):
        tool("send", to="user:tester", text="x", files=["a.txt"])
    assert len(store.mail.list(mailbox=place.mailbox).items) == 5


def test_token_in_place_of_its_name_is_not_repeated(cli: Cli) -> None:
    for more in ((), ("--json",)):
        result = cli("channel", "add", "bot", "telegram", "--secret", "token=12345:AAE-word", *more)
        assert result.code == 2
        assert "AAE" not in result.out + result.err
