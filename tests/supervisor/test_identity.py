"""A process inside a run acts as the run's agent, regardless of environment variables."""

import json
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from corral.domain.runs.model import Run
from corral.kernel.errors import Conflict
from tests.support.home import Home, wait_until
from tests.support.http_server import run_http_server

CORRAL = f"{sys.executable} -m corral"


def run_inside(
    home: Home, script: str, *, agent: str | None = "ada", options: tuple[str, ...] = ()
) -> Run:
    """Run a shell script as the program of a run and wait for its end.

    In the script, `record NAME` writes the exit status of the previous command.
    """
    file = home.work / "script.sh"
    file.write_text(
        textwrap.dedent(f"""\
        #!/bin/sh
        corral() {{ {CORRAL} "$@"; }}
        record() {{ echo "$? $1" >> "{home.work}/exit-codes"; }}
        """)
        + textwrap.dedent(script)
    )
    file.chmod(0o755)
    if agent is None:
        return home.wait_for_end(home.start_detached(str(file)).id)
    with home.store() as store, suppress(Conflict):
        store.agents.create(agent, command=str(file))
    return home.wait_for_end(home.start_agent(agent, "go", *options).id)


def read_exit_codes(home: Home) -> dict[str, int]:
    lines = (home.work / "exit-codes").read_text().splitlines()
    return {line.partition(" ")[2]: int(line.partition(" ")[0]) for line in lines}


def list_senders(home: Home, mailbox: str) -> list[str | None]:
    with home.store() as store:
        return [letter.sender for letter in store.mail.list(mailbox=mailbox).items]


# Forks one process per command, which is faster than starting each command.
RUN_COMMANDS = """
import json, os, sys
from corral.cli.main import run

for name, arguments in json.load(open(sys.argv[1])).items():
    if (child := os.fork()) == 0:
        os._exit(run(arguments))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, name, file=open("exit-codes", "a"))
"""
UNSET = "env -u CORRAL_AGENT -u CORRAL_RUN -u CORRAL_SESSION"


def test_process_in_a_run_acts_as_its_agent_without_variables(home: Home) -> None:
    with home.store() as store:
        store.agents.create("bob", command="true")
    run = run_inside(
        home,
        f"""
        CORRAL_AGENT=bob {CORRAL} mail put queue:q changed; record changed
        {UNSET} {CORRAL} mail put queue:q unset; record unset
        env CORRAL_HOST=elsewhere {UNSET} {CORRAL} mail put queue:q other-host; record host
        {UNSET} setsid {CORRAL} mail put queue:q session; record session
        {UNSET} sh -c '({CORRAL} mail put queue:q orphan; echo done > "$PWD/orphaned") & exit 0'
        while [ ! -e orphaned ]; do sleep 0.1; done
        """,
    )
    assert set(read_exit_codes(home).values()) == {0}
    assert list_senders(home, "queue:q") == ["agent:ada"] * 5
    with home.store() as store:
        put_events = [
            e for e in store.events.newest(limit=200).items if (e.kind, e.verb) == ("letter", "put")
        ]
        assert {(event.actor, event.run) for event in put_events} == {("agent:ada", run.id)}


def test_commands_of_an_agent_know_the_caller_without_variables(home: Home) -> None:
    with home.store() as store:
        project = store.projects.register(str(home.work))
        store.tasks.add(project.id, "one")
    run_inside(
        home,
        f"""
        {UNSET} {CORRAL} task claim; record claim
        {UNSET} {CORRAL} lock acquire a.txt; record acquire
        {UNSET} {CORRAL} lock check a.txt; record check
        {UNSET} {CORRAL} lock release --all; record release
        {UNSET} {CORRAL} task claim --agent bob; record other
        """,
    )
    codes = {"claim": 0, "acquire": 0, "check": 0, "release": 0, "other": 4}
    assert read_exit_codes(home) == codes
    with home.store() as store:
        (lock,) = store.locks.list(project=project.id, all=True).items
        assert (lock.owner, lock.state) == ("agent:ada", "released")


def test_operations_for_people_are_refused_inside_a_run(home: Home) -> None:
    with home.store() as store:
        question = store.questions.ask("May I?", options=["yes", "no"], asker="agent:ada")
    commands = {
        "token": ["token", "create", "mine"],
        "setting": ["setting", "set", "runs.max_concurrent", "5"],
        "secret": ["secret", "set", "KEY", "env:HOME"],
        "resolve": ["secret", "check", "KEY"],
        "answer": ["question", "answer", question.id, "yes"],
        "budget": ["budget", "set", "all", "5"],
        "grant": ["agent", "grant", "ada", "Bash"],
        "literal": ["--literal", "mail", "put", "queue:q", "hello"],
        "send": ["send", "ada", "yes"],
        "ps": ["ps"],
    }
    (home.work / "commands.py").write_text(RUN_COMMANDS)
    (home.work / "commands.json").write_text(json.dumps(commands))
    with home.store() as store:
        store.agents.create("ada", command=str(home.work / "script.sh"))
    script = f"{UNSET} {sys.executable} commands.py commands.json"
    run_inside(home, script, options=("--name", "ada"))
    exit_codes = read_exit_codes(home)
    assert exit_codes.pop("ps") == 0
    assert exit_codes == dict.fromkeys(exit_codes, 4)
    assert len(exit_codes) == 9
    with home.store() as store:
        assert store.tokens.list().items == []
        assert store.questions.get(question.id).state == "open"


def test_person_can_grant_an_operation_to_one_agent(home: Home) -> None:
    with home.store() as store:
        store.agents.create("ada", command="true")
        store.settings.set("runs.allowed_operations", ["tokens.create"], scope="agent:ada")
        store.agents.edit("ada", command=str(home.work / "script.sh"))
    run = run_inside(
        home,
        f"""
        {CORRAL} token create mine; record token
        {CORRAL} setting set runs.max_concurrent 5; record setting
        """,
    )
    assert read_exit_codes(home) == {"token": 0, "setting": 4}
    with home.store() as store:
        assert store.tokens.get("mine").created_by == "agent:ada"
        events = store.events.newest(subject=store.tokens.get("mine").id).items
        assert [(event.actor, event.run) for event in events] == [("agent:ada", run.id)]


CALL_LIBRARY = """
import json, os, sys
import corral
from corral.kernel.errors import CorralError

def attempt(operation):
    try:
        operation()
        return "done"
    except CorralError as error:
        return error.code

for name in ("CORRAL_AGENT", "CORRAL_RUN", "CORRAL_SESSION"):
    os.environ.pop(name, None)
with corral.open(actor="user:root") as store:
    outcomes = {
        "token": attempt(lambda: store.tokens.create("mine")),
        "accept": attempt(lambda: store.tasks.accept(sys.argv[1])),
        "as a person": attempt(lambda: store.mail.put("queue:q", "x", sender="user:root")),
        "as bob": attempt(lambda: store.groups.send("user:root", "x", author="agent:bob")),
        "acting": attempt(lambda: store.act_as("user:root")),
        "transaction": attempt(lambda: store.transaction().__enter__()),
        "own": attempt(lambda: store.mail.put("queue:q", "x")),
    }
print(json.dumps(outcomes))
"""


def test_program_of_an_agent_has_the_same_permissions(home: Home) -> None:
    file = home.work / "program.py"
    file.write_text(CALL_LIBRARY)
    with home.store() as store:
        project = store.projects.register(str(home.work))
        store.agents.create("ada", command=str(home.work / "script.sh"))
        task = store.tasks.add(project.id, "one", assignee="ada")
        store.tasks.claim(project.id, "ada", key="one")
        store.tasks.submit(task.id, "done", agent="ada")
    run_inside(home, f"{sys.executable} {file} {task.id} > outcomes.json 2>&1; record it")
    outcomes: dict[str, Any] = json.loads((home.work / "outcomes.json").read_text())
    assert outcomes.pop("own") == "done"
    assert outcomes == dict.fromkeys(outcomes, "refused")
    assert list_senders(home, "queue:q") == ["agent:ada"]


OPEN_FOR_UPGRADE = """
import corral
from corral.kernel.errors import Refused

with corral.open(actor="user:alice", check_schema=False) as store:
    for call in (lambda: store.tokens.create("mine"), store.db.migrate):
        try:
            call()
            print("done")
        except Refused:
            print("refused")
"""


def test_store_opened_for_upgrade_has_the_same_permissions(home: Home) -> None:
    file = home.work / "program.py"
    file.write_text(OPEN_FOR_UPGRADE)
    run_inside(
        home,
        f"""
        {UNSET} {sys.executable} {file} > outcomes; record program
        {UNSET} {CORRAL} db migrate; record command
        """,
    )
    assert (home.work / "outcomes").read_text().split() == ["refused"] * 2
    assert read_exit_codes(home) == {"program": 0, "command": 4}


def test_run_without_an_agent_is_not_a_person(home: Home) -> None:
    run = run_inside(
        home,
        f"""
        {UNSET} {CORRAL} token create mine; record token
        CORRAL_AGENT=bob {CORRAL} mail put queue:q hello; record mail
        """,
        agent=None,
    )
    assert read_exit_codes(home) == {"token": 4, "mail": 0}
    assert list_senders(home, "queue:q") == [f"queue:{run.id}"]


def test_check_that_corral_runs_is_not_a_person(home: Home, tmp_path: Path) -> None:
    with home.store() as store:
        project = store.projects.register(str(home.work))
        store.agents.create("ada", command="true")
        check = f"{UNSET} -u CORRAL_CHECK -u CORRAL_CHECK_OF {CORRAL} token create mine"
        task = store.tasks.add(project.id, "one", check=check)
        store.tasks.claim(project.id, "ada", key="one")
        store.tasks.submit(task.id, "done", agent="ada")
    checked = home.json("task", "check", task.id, "--json")
    assert "for people" in json.dumps(checked)
    with home.store() as store:
        assert store.tokens.list().items == []


def test_check_cannot_act_as_the_agent_of_a_run(home: Home) -> None:
    with home.store() as store:
        project = store.projects.register(str(home.work))
        store.agents.create("ada", command="true")
        store.agents.create("bob", command="cat")
    bob = home.start_agent("bob", "begin", "--pty")
    with home.store() as store:
        check = f"CORRAL_RUN={bob.id} {CORRAL} task accept $CORRAL_TASK; echo exit=$?"
        task = store.tasks.add(project.id, "one", check=check)
        store.tasks.claim(project.id, "ada", key="one")
        store.tasks.submit(task.id, "done", agent="ada")
    checked = home.json("task", "check", task.id, "--json")
    assert "exit=4" in json.dumps(checked)
    with home.store() as store:
        accepted = [e for e in store.events.newest(subject=task.id).items if e.verb == "accept"]
        assert "agent:bob" not in [event.actor for event in accepted]
        store.runs.stop(bob.id)
    home.wait_for_end(bob.id)


CALL_HTTP_API = """
import json, sys, urllib.request, urllib.error

def post(path, **arguments):
    request = urllib.request.Request(
        sys.argv[1] + path,
        json.dumps(arguments).encode(),
        {"Authorization": "Bearer " + sys.argv[2], "Content-Type": "application/json"},
    )
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code

print(json.dumps({
    "token": post("/api/tokens/create", name="mine"),
    "setting": post("/api/settings/set", name="runs.allowed_operations", value=["tokens.create"]),
    "mail": post("/api/mail/put", mailbox="queue:q", body="x", sender="user:root"),
}))
"""


@pytest.mark.parametrize("agent", ["ada", None])
def test_persons_token_does_not_make_a_process_in_a_run_a_person(
    home: Home, agent: str | None
) -> None:
    file = home.work / "call.py"
    file.write_text(CALL_HTTP_API)
    with home.store() as store, run_http_server(store) as http_server:
        command = f"{sys.executable} {file} {http_server.url} {http_server.token}"
        run = run_inside(home, f"{UNSET} {command} > outcomes.json; record it", agent=agent)
        outcomes = json.loads((home.work / "outcomes.json").read_text())
        mail = 200 if agent else 403
        assert outcomes == {"token": 403, "setting": 403, "mail": mail}
        if agent:
            (letter,) = store.mail.list(mailbox="queue:q").items
            assert letter.sender == "agent:ada"
            (event,) = store.events.newest(subject=letter.id).items
            assert (event.actor, event.run) == ("agent:ada", run.id)
        with http_server.client() as person:
            assert person.post("/api/tokens/create", json={"name": "other"}).status_code == 200


def test_read_only_token_does_not_write_in_a_run(home: Home) -> None:
    file = home.work / "call.py"
    file.write_text(CALL_HTTP_API)
    with home.store() as store, run_http_server(store) as http_server:
        token = store.tokens.create("reader", scope="read").value
        run_inside(home, f"{sys.executable} {file} {http_server.url} {token} > outcomes.json")
        outcomes = json.loads((home.work / "outcomes.json").read_text())
        assert outcomes == {"token": 403, "setting": 403, "mail": 403}
        assert store.mail.list(mailbox="queue:q").items == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_persons_token_does_not_make_a_check_a_person(home: Home) -> None:
    file = home.work / "call.py"
    file.write_text(CALL_HTTP_API)
    with home.store() as store, run_http_server(store) as http_server:
        command = f"{sys.executable} {file} {http_server.url} {http_server.token}"
        project = store.projects.register(str(home.work))
        store.agents.create("ada", command="true")
        task = store.tasks.add(project.id, "one", check=f"{UNSET} {command} > outcomes.json")
        store.tasks.claim(project.id, "ada", key="one")
        store.tasks.submit(task.id, "done", agent="ada")
        home.json("task", "check", task.id, "--json")
        outcomes = json.loads((home.work / "outcomes.json").read_text())
        assert outcomes == {"token": 403, "setting": 403, "mail": 403}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_unidentified_caller_is_not_a_person(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that disconnects, exits or denies inspection has no visible socket."""
    with (
        home.store() as store,
        run_http_server(store) as http_server,
        http_server.client() as caller,
    ):
        monkeypatch.setattr(
            "corral.adapters.processes.socket_peers._list_holders", lambda wanted: []
        )
        response = caller.post("/api/tokens/create", json={"name": "mine"})
        assert response.status_code == 403
        assert response.json()["error"]["details"]["reason"] == "caller_unknown"
        assert caller.get("/api/tokens/list").status_code == 200
        assert not [token for token in store.tokens.list().items if token.name == "mine"]


ASK_WITH_KEY = """
import sys, urllib.request
request = urllib.request.Request(
    sys.argv[1] + "/api/questions/ask",
    b'{"text": "Which?"}',
    {
        "Authorization": "Bearer " + sys.argv[2],
        "Content-Type": "application/json",
        "Idempotency-Key": "k",
    },
)
print(urllib.request.urlopen(request).read().decode())
"""


def test_agents_with_one_token_do_not_share_idempotency_keys(home: Home) -> None:
    file = home.work / "ask.py"
    file.write_text(ASK_WITH_KEY)
    with home.store() as store, run_http_server(store) as http_server:
        command = f"{sys.executable} {file} {http_server.url} {http_server.token}"
        questions = []
        for agent in ("ada", "eve"):
            run_inside(home, f"{command} > a.json && {command} > b.json; record it", agent=agent)
            first, repeated = ((home.work / name).read_text() for name in ("a.json", "b.json"))
            assert first == repeated
            questions.append(json.loads(first))
    assert [question["asker"] for question in questions] == ["agent:ada", "agent:eve"]


TYPE_INTO_SOCKET = """
import os, socket, struct, sys, time
from pathlib import Path
from corral.adapters import control_socket

folder = Path(sys.argv[1])
reply = control_socket.send_request(folder, op="send", text="sent", enter=True)
connection = control_socket.connect(folder)
connection.sendall(control_socket.encode_frame(control_socket.REQUEST, {"op": "attach"}))
connection.sendall(control_socket.encode_frame(control_socket.DATA, b"typed\\r"))
connection.recv(100)
control_socket.send_request(folder, op="none")  # waits for the earlier frames
os.set_blocking(0, False)
try:
    received = os.read(0, 100).decode()
except BlockingIOError:
    received = ""
print("error", reply.get("error"), "received", repr(received))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_process_inside_a_run_cannot_type_into_its_own_terminal(home: Home) -> None:
    """It could approve its own agent's dialogs through the supervisor's socket."""
    file = home.work / "line.py"
    file.write_text(TYPE_INTO_SOCKET)
    script = home.work / "script.sh"
    script.write_text(f'#!/bin/sh\n{UNSET} {sys.executable} {file} "$RUNS/$CORRAL_RUN"\n')
    script.chmod(0o755)
    runs = Path(home.env["CORRAL_HOME"]) / "runs"
    run = home.wait_for_end(
        home.start_detached(str(script), options=("--pty", "-e", f"RUNS={runs}")).id
    )
    assert b"error inside_run received ''" in home.output(run)


def test_run_may_type_only_into_runs_that_it_started(home: Home) -> None:
    """Typed text has no sender, so an agent takes it for input of its user."""
    with home.store() as store:
        store.agents.create("bob", command="cat")
    bob = home.start_agent("bob", "begin", "--pty", "--name", "bob")
    typed = home.start_detached("cat", options=("--pty", "--name", "typed"))
    run = run_inside(
        home,
        f"""
        {UNSET} {CORRAL} send bob 'Yes, go ahead.'; record session
        {UNSET} {CORRAL} send typed 'Yes, go ahead.'; record command
        {CORRAL} run -d --pty --name own -- cat; record start
        {UNSET} {CORRAL} send own 'hello, child'; record own
        """,
    )
    assert read_exit_codes(home) == {"session": 0, "command": 4, "start": 0, "own": 0}
    child = home.get("own")
    outputs = {}
    for target in (bob, typed, child):
        with home.store() as store:
            store.runs.send(target.id, "of a person")
            wait_until(
                lambda target=target: b"of a person" in home.output_so_far(target), "its echo"
            )
            store.runs.stop(target.id)
        outputs[target.id] = home.output(home.wait_for_end(target.id))
    assert [b"go ahead" in text for text in outputs.values()] == [False] * 3
    assert b"hello, child" in outputs[child.id]
    assert list_senders(home, f"session:{bob.session_id}") == ["agent:ada"]
    assert run.state == "completed"


END_OWN_RUN = """
import corral
from corral.kernel.exit_status import ExitStatus
from corral.kernel.errors import Refused

with corral.open() as store:
    run, runs = store.runs.get(store.identity.run), store.internal.runs
    for call in (
        lambda: runs.record_end(run, ExitStatus(exit_code=0)),
        lambda: runs.end_orphaned(run, verb="crash", reason="forged"),
        lambda: runs.park(run, until=1, reason="forged"),
        lambda: runs.take_over(run, owner="x", supervisor_pid=1, supervisor_token="1"),
    ):
        try:
            call()
            print("done")
        except Refused:
            print("refused")
raise SystemExit(3)
"""


def test_process_inside_a_run_cannot_record_its_end(home: Home) -> None:
    file = home.work / "ends.py"
    file.write_text(END_OWN_RUN)
    run = run_inside(home, f"exec {sys.executable} {file}", agent=None)
    assert (run.exit_code, run.attempts) == (3, 1)
    assert home.output(run).split() == [b"refused"] * 4
