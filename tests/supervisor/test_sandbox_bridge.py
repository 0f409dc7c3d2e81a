"""Chats with agents in a real sandbox, through the files of the sandbox bridge."""

import json
import os
import signal
import socket
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from corral.adapters.sandbox import sandbox
from corral.adapters.sandbox.sandbox import SandboxKind
from corral.adapters.sandbox_bridge.schema import SessionFolder
from corral.domain.mail.model import Letter
from corral.kernel.errors import Refused
from corral.services.chat import session_sandbox
from tests.support.home import Home, wait_until

SANDBOX_KINDS = [SandboxKind.BUBBLEWRAP, SandboxKind.LANDLOCK]


@pytest.fixture(params=SANDBOX_KINDS)
def kind(request: pytest.FixtureRequest) -> SandboxKind:
    kind: SandboxKind = request.param
    if not sandbox.can_block_network(kind):
        pytest.skip(f"{kind} is not available: {sandbox.probe_sandboxes(network=False).why_not}")
    return kind


@pytest.fixture
def any_kind() -> SandboxKind:
    """The best working sandbox, for behaviour that does not depend on its kind."""
    for kind in SANDBOX_KINDS:
        if sandbox.can_block_network(kind):
            return kind
    pytest.skip(f"no sandbox is available: {sandbox.probe_sandboxes(network=False).why_not}")


@contextmanager
def sandboxed_agent(home: Home, kind: str, script: str, name: str = "ada") -> Iterator[None]:
    """Create a sandboxed agent that runs a shell script outside of its work folder."""
    path = home.folder / f"{name}.sh"
    path.write_text("#!/bin/sh\n" + textwrap.dedent(script))
    path.chmod(0o700)
    with home.store() as store:
        store.agents.create(name, command=str(path))
        store.settings.set("chat.sandbox", kind, scope=f"agent:{name}")
    yield


def send_chat(home: Home, text: str, name: str = "ada") -> list[str]:
    result = home.corral("chat", "--agent", name, "--once", text, "--timeout", "60s", "--json")
    assert result.returncode == 0, result.stderr
    answers: list[str] = json.loads(result.stdout)["answers"]
    return answers


def test_sandboxed_agent_answers_a_message(home: Home, kind: SandboxKind) -> None:
    with sandboxed_agent(home, kind, 'read -r line; echo "you wrote: $line"'):
        assert send_chat(home, "hello there") == ["you wrote: hello there"]
        with home.store() as store:
            (run,) = store.runs.list().items
            launch = store.runs.get_launch(run.id)
            assert launch.sandbox == f"session:{kind}"
            assert launch.environment["sandbox"]["kind"] == kind


def test_sandboxed_agent_reaches_only_its_work_and_file(home: Home, kind: SandboxKind) -> None:
    secret = home.folder / "secret"
    secret.write_text("precious")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        script = f"""
            echo x > file && echo "work: written"
            cat {secret} 2>/dev/null || echo "secret: hidden"
            cat "$CORRAL_SESSION_FOLDER/in/inbound.db" > /dev/null && echo "inbound: read"
            (echo x >> "$CORRAL_SESSION_FOLDER/in/inbound.db") 2>/dev/null || echo "inbound: kept"
            (rm "$CORRAL_SESSION_FOLDER/in/inbound.db") 2>/dev/null || echo "inbound: there"
            (cd "$CORRAL_SESSION_FOLDER" && mv in on) 2>/dev/null || echo "folder: there"
            ls {os.environ["CORRAL_HOME"]}/corral.db 2>/dev/null || echo "store: hidden"
            echo "store variable: $CORRAL_STORE$SECRET_OF_THE_HOST"
            {sys.executable} -c "{connect}" 2>/dev/null || echo "network: none"
        """
        home.env["SECRET_OF_THE_HOST"] = "leaked"
        with sandboxed_agent(home, kind, script):
            (answer,) = send_chat(home, "go")
    assert answer.splitlines() == [
        "work: written",
        "secret: hidden",
        "inbound: read",
        "inbound: kept",
        "inbound: there",
        "folder: there",
        "store: hidden",
        "store variable: ",
        "network: none",
    ]
    assert (home.work / "file").exists()


def test_commands_of_a_sandboxed_agent_use_the_files(home: Home, any_kind: SandboxKind) -> None:
    script = """
        corral session state count "$(( $(corral session state count 2>/dev/null || echo 0) + 1 ))"
        corral message send "working on it" > /dev/null
        corral message send "hello" --to unknown 2>/dev/null || echo "no such destination"
        echo "turn $(corral session state count)"
    """
    with sandboxed_agent(home, any_kind, script):
        assert send_chat(home, "go") == ["working on it", "no such destination\nturn 1"]
        assert send_chat(home, "go on") == ["working on it", "no such destination\nturn 2"]
        with home.store() as store:
            (session,) = store.sessions.list().items
            assert store.sessions.state(session.id) == {"sandbox:count": "2"}


def test_attachments_and_host_requests_use_the_files(home: Home, any_kind: SandboxKind) -> None:
    secret = home.folder / "secret"
    secret.write_text("precious")
    script = f"""
        echo "all is well" > report.txt
        corral message send "look" --file report.txt > /dev/null
        corral message send "mine?" --file {secret} 2>/dev/null || echo "secret: hidden"
        corral request ask create_agent name=helper instructions=Help. > /dev/null
        mkdir -p "$CORRAL_SESSION_FOLDER/out/outbox"
        ln -s {secret.parent} "$CORRAL_SESSION_FOLDER/out/outbox/out-x"
        {sys.executable} - <<'END'
        import json, os, sqlite3
        content = json.dumps({{"text": "x", "files": ["secret"]}})
        with sqlite3.connect(os.environ["CORRAL_SESSION_FOLDER"] + "/out/outbound.db") as db:
            db.execute("INSERT INTO messages_out (id, seq, timestamp, kind, content) "
                       "VALUES ('out-x', 901, 't', 'chat', ?)", (content,))
        END
    """
    with sandboxed_agent(home, any_kind, textwrap.dedent(script)), home.store() as store:
        assert send_chat(home, "go")[0] == "look"
        messages = store.messages.list().items
        attachments = [
            message.data["file"]["path"] for message in messages if message.kind == "file"
        ]
        assert [Path(path).read_text() for path in attachments] == ["all is well\n"]
        (request,) = store.host_requests.list().items
        assert (request.action, request.state) == ("create_agent", "waiting")
        assert f"in the same sandbox: {any_kind}" in request.effect
        refused = [
            event.data for event in store.events.newest(limit=200).items if event.verb == "refuse"
        ]
        assert [data["message"] for data in refused] == ["out-x"]
        assert "link" in refused[0]["reason"]


def test_question_is_answered_while_the_agent_waits(home: Home, any_kind: SandboxKind) -> None:
    script = 'echo "so: $(corral ask "Really?" --option yes --option no --timeout 60)"'
    with sandboxed_agent(home, any_kind, script), home.store() as store:
        with home.begin("chat", "--agent", "ada", "--once", "go", "--timeout", "60s") as chat:
            question = wait_until(
                lambda: next(iter(store.questions.list(all=True).items), None), "a question"
            )
            store.questions.answer(question.id, "yes", by="user:olga")
            output, _ = chat.communicate(timeout=60)
        assert "so: yes" in output.decode()


def test_failed_sandboxed_turn_is_retried(home: Home, any_kind: SandboxKind) -> None:
    script = '[ -e once ] && { echo fine; exit 0; }; touch once; echo "failed" >&2; exit 3'
    with sandboxed_agent(home, any_kind, script):
        assert send_chat(home, "go") == ["fine"]
        with home.store() as store:
            runs = store.runs.list(limit=5).items
            assert [run.exit_code for run in runs] == [0, 3]


def test_killed_sandboxed_run_is_retried_and_answered_once(
    home: Home, any_kind: SandboxKind
) -> None:
    script = "[ -e once ] && { echo fine; exit 0; }; touch once; sleep 600"
    with sandboxed_agent(home, any_kind, script), home.store() as store:
        with home.begin("chat", "--agent", "ada", "--once", "go", "--timeout", "60s") as chat:
            wait_until((home.work / "once").exists, "the agent's first turn")
            (run,) = store.runs.list(live=True).items
            os.kill(int(str(run.pid)), signal.SIGKILL)
            output, _ = chat.communicate(timeout=90)
        assert output.decode().split() == ["fine"]
        runs = store.runs.list(limit=5).items
        logs = [home.corral("logs", "--raw", run.id).stdout for run in runs]
        assert [run.state for run in runs] == ["completed", "crashed"], logs


def test_output_of_a_sandboxed_agent_cli_is_parsed(home: Home) -> None:
    if not sandbox.can_block_network(SandboxKind.BUBBLEWRAP):
        pytest.skip("bubblewrap is not available")
    with home.store() as store:
        store.agents.create("bob", provider="scripted")
        store.settings.set("chat.sandbox", "auto", scope="agent:bob")
    assert send_chat(home, "say first; spend 100 50; say last", "bob") == ["last"]
    with home.store() as store:
        (run,) = store.runs.list().items
        assert run.tokens == 150
        (session,) = store.sessions.list().items
        assert session.provider_session is not None
    assert send_chat(home, "say again", "bob") == ["again"], "the conversation continues"


def test_agent_is_not_started_without_a_working_sandbox(home: Home) -> None:
    if not sandbox.can_block_network(SandboxKind.LANDLOCK):
        pytest.skip("Landlock is not available")
    with sandboxed_agent(home, "landlock", "echo out"):
        # The work folder contains Corral's own files, which Landlock cannot protect.
        command = ("chat", "--agent", "ada", "--once", "go", "--timeout", "10m")
        with home.begin(*command, cwd=home.folder) as chat, home.store() as store:
            run = wait_until(
                lambda: next(iter(store.runs.list(limit=1).items), None), "the run is queued"
            )
            run = home.wait_for_end(run.id)
            assert run.state == "failed"
            assert "Landlock cannot protect" in str(run.reason)
            assert chat.poll() is None, "no answer was sent"


def test_file_bridge_without_sandbox_needs_the_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unavailable = sandbox.ProbeResult(SandboxKind.NONE, {SandboxKind.BUBBLEWRAP: "not installed"})
    monkeypatch.setattr(sandbox, "probe_sandboxes", lambda **_: unavailable)
    folder = SessionFolder(str(tmp_path))
    for path in (folder.inside, folder.outside, folder.home):
        os.mkdir(path)
    paths = session_sandbox.SandboxPaths(None, "sqlite:///x", str(tmp_path / "scratch"))
    with pytest.raises(Refused, match="Install bubblewrap"):
        session_sandbox.wrap_command(["true"], folder, paths, kind="auto")
    wrapped = session_sandbox.wrap_command(["true"], folder, paths, kind="none")
    assert wrapped.words == ["true"]
    assert "Not sandboxed" in wrapped.missing_protections[0]


def test_host_rejects_forged_rows_from_a_real_sandbox(home: Home, any_kind: SandboxKind) -> None:
    script = f"""
        {sys.executable} - <<'END'
        import os, sqlite3
        path = os.environ["CORRAL_SESSION_FOLDER"] + "/out/outbound.db"
        with sqlite3.connect(path) as db:
            db.execute("CREATE TRIGGER t AFTER INSERT ON processing_ack BEGIN SELECT 1; END")
        END
        [ -e once ] || {{ touch once; exit 0; }}
        cd "$CORRAL_SESSION_FOLDER/out"; rm -f outbound.db; mkfifo outbound.db
    """
    with sandboxed_agent(home, any_kind, textwrap.dedent(script)):
        command = ("chat", "--agent", "ada", "--once", "go", "--timeout", "10m")
        with home.begin(*command) as chat, home.store() as store:

            def find_retried_letter() -> Letter | None:
                letters = store.mail.list().items
                letters = [letter for letter in letters if letter.mailbox.startswith("session:")]
                waiting = [
                    item for item in letters if item.state == "waiting" and item.attempts >= 2
                ]
                return waiting[0] if waiting else None

            letter = wait_until(find_retried_letter, "the letter is retried twice")
            assert "rejected" in str(letter.last_error)
            events = store.events.newest(limit=200).items
            refusals = [event.data for event in events if event.verb == "refuse"]
            assert refusals
            assert {data["file"] for data in refusals} == {"outbound.db"}
            assert chat.poll() is None, "no answer was sent"


def test_git_hooks_from_a_sandbox_are_never_run(home: Home, any_kind: SandboxKind) -> None:
    marker = home.folder / "executed"
    script = f"""
        git init -q . && echo x > file && git add file
        git config core.fsmonitor 'touch {marker}; false'
        git config filter.out.clean 'touch {marker}; cat'
        echo '* filter=out' > .gitattributes
        touch file
        echo done
    """
    with sandboxed_agent(home, any_kind, script):
        assert [send_chat(home, "go"), send_chat(home, "again")] == [["done"], ["done"]]
    assert not marker.exists()
