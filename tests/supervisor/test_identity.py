"""A process inside a run acts as the run's agent, whatever its variables say."""

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
    """Run a shell script as the program of a run, to its end; `tried NAME` in it notes how the
    command before it ended."""
    file = home.work / "script.sh"
    file.write_text(
        textwrap.dedent(f"""\
        #!/bin/sh
        corral() {{ {CORRAL} "$@"; }}
        tried() {{ echo "$? $1" >> "{home.work}/tried"; }}
        """)
        + textwrap.dedent(script)
    )
    file.chmod(0o755)
    if agent is None:
        return home.wait_for_end(home.start_detached(str(file)).id)
    with home.store() as store, suppress(Conflict):
        store.agents.create(agent, command=str(file))
    return home.wait_for_end(home.start_agent(agent, "go", *options).id)


def tried(home: Home) -> dict[str, int]:
    lines = (home.work / "tried").read_text().splitlines()
    return {line.partition(" ")[2]: int(line.partition(" ")[0]) for line in lines}


def senders(home: Home, mailbox: str) -> list[str | None]:
    with home.store() as store:
        return [letter.sender for letter in store.mail.list(mailbox=mailbox).items]


# Many commands for the price of one start: each is called in a fork of one process.
COMMANDS = """
import json, os, sys
from corral.cli.main import run

for name, words in json.load(open(sys.argv[1])).items():
    if (child := os.fork()) == 0:
        os._exit(run(words))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, name, file=open("tried", "a"))
"""
BARE = "env -u CORRAL_AGENT -u CORRAL_RUN -u CORRAL_SESSION"


def test_process_in_a_run_acts_as_its_agent_without_variables(home: Home) -> None:
    with home.store() as store:
        store.agents.create("bob", command="true")
    run = run_inside(
        home,
        f"""
        CORRAL_AGENT=bob {CORRAL} mail put queue:q changed; tried changed
        {BARE} {CORRAL} mail put queue:q unset; tried unset
        env CORRAL_HOST=elsewhere {BARE} {CORRAL} mail put queue:q other-host; tried host
        {BARE} setsid {CORRAL} mail put queue:q session; tried session
        {BARE} sh -c '({CORRAL} mail put queue:q orphan; echo done > "$PWD/orphaned") & exit 0'
        while [ ! -e orphaned ]; do sleep 0.1; done
        """,
    )
    assert set(tried(home).values()) == {0}
    assert senders(home, "queue:q") == ["agent:ada"] * 5
    with home.store() as store:
        put = [
            e for e in store.events.newest(limit=200).items if (e.kind, e.verb) == ("letter", "put")
        ]
        assert {(event.actor, event.run) for event in put} == {("agent:ada", run.id)}


def test_operations_for_people_are_refused_inside_a_run(home: Home) -> None:
    with home.store() as store:
        asked = store.questions.ask("May I?", options=["yes", "no"], asker="agent:ada")
    commands = {
        "token": ["token", "create", "mine"],
        "setting": ["setting", "set", "runs.max_concurrent", "5"],
        "secret": ["secret", "set", "KEY", "env:HOME"],
        "resolve": ["secret", "check", "KEY"],
        "answer": ["question", "answer", asked.id, "yes"],
        "budget": ["budget", "set", "all", "5"],
        "grant": ["agent", "grant", "ada", "Bash"],
        "literal": ["--literal", "mail", "put", "queue:q", "hello"],
        "send": ["send", "ada", "yes"],
        "ps": ["ps"],
    }
    (home.work / "commands.py").write_text(COMMANDS)
    (home.work / "commands.json").write_text(json.dumps(commands))
    with home.store() as store:
        store.agents.create("ada", command=str(home.work / "script.sh"))
    script = f"{BARE} {sys.executable} commands.py commands.json"
    run_inside(home, script, options=("--name", "ada"))
    ended = tried(home)
    assert ended.pop("ps") == 0
    assert ended == dict.fromkeys(ended, 4)
    assert len(ended) == 9
    with home.store() as store:
        assert store.tokens.list().items == []
        assert store.questions.get(asked.id).state == "open"


def test_person_can_grant_an_operation_to_one_agent(home: Home) -> None:
    with home.store() as store:
        store.agents.create("ada", command="true")
        store.settings.set("runs.allowed_operations", ["tokens.create"], scope="agent:ada")
        store.agents.edit("ada", command=str(home.work / "script.sh"))
    run = run_inside(
        home,
        f"""
        {CORRAL} token create mine; tried token
        {CORRAL} setting set runs.max_concurrent 5; tried setting
        """,
    )
    assert tried(home) == {"token": 0, "setting": 4}
    with home.store() as store:
        assert store.tokens.get("mine").created_by == "agent:ada"
        made = store.events.newest(subject=store.tokens.get("mine").id).items
        assert [(event.actor, event.run) for event in made] == [("agent:ada", run.id)]


LIBRARY = """
import json, os, sys
import corral
from corral.kernel.errors import CorralError

def tried(what):
    try:
        what()
        return "done"
    except CorralError as error:
        return error.code

for name in ("CORRAL_AGENT", "CORRAL_RUN", "CORRAL_SESSION"):
    os.environ.pop(name, None)
with corral.open(actor="user:root") as store:
    told = {
        "token": tried(lambda: store.tokens.create("mine")),
        "accept": tried(lambda: store.tasks.accept(sys.argv[1])),
        "as a person": tried(lambda: store.mail.put("queue:q", "x", sender="user:root")),
        "as bob": tried(lambda: store.groups.send("user:root", "x", author="agent:bob")),
        "acting": tried(lambda: store.act_as("user:root")),
        "transaction": tried(lambda: store.transaction().__enter__()),
        "own": tried(lambda: store.mail.put("queue:q", "x")),
    }
print(json.dumps(told))
"""


def test_program_of_an_agent_has_the_same_permissions(home: Home) -> None:
    file = home.work / "program.py"
    file.write_text(LIBRARY)
    with home.store() as store:
        project = store.projects.register(str(home.work))
        store.agents.create("ada", command=str(home.work / "script.sh"))
        task = store.tasks.add(project.id, "one", assignee="ada")
        store.tasks.claim(project.id, "ada", key="one")
        store.tasks.submit(task.id, "done", agent="ada")
    run_inside(home, f"{sys.executable} {file} {task.id} > told.json 2>&1; tried it")
    told: dict[str, Any] = json.loads((home.work / "told.json").read_text())
    assert told.pop("own") == "done"
    assert told == dict.fromkeys(told, "refused")
    assert senders(home, "queue:q") == ["agent:ada"]


def test_run_without_an_agent_is_not_a_person(home: Home) -> None:
    run = run_inside(
        home,
        f"""
        {BARE} {CORRAL} token create mine; tried token
        CORRAL_AGENT=bob {CORRAL} mail put queue:q hello; tried mail
        """,
        agent=None,
    )
    assert tried(home) == {"token": 4, "mail": 0}
    assert senders(home, "queue:q") == [f"queue:{run.id}"]


def test_check_that_corral_runs_is_not_a_person(home: Home, tmp_path: Path) -> None:
    with home.store() as store:
        project = store.projects.register(str(home.work))
        store.agents.create("ada", command="true")
        check = f"{BARE} -u CORRAL_CHECK -u CORRAL_CHECK_OF {CORRAL} token create mine"
        task = store.tasks.add(project.id, "one", check=check)
        store.tasks.claim(project.id, "ada", key="one")
        store.tasks.submit(task.id, "done", agent="ada")
    checked = home.json("task", "check", task.id, "--json")
    assert "for people" in json.dumps(checked)
    with home.store() as store:
        assert store.tokens.list().items == []


CALL = """
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
    file.write_text(CALL)
    with home.store() as store, run_http_server(store) as http_server:
        command = f"{sys.executable} {file} {http_server.url} {http_server.token}"
        run = run_inside(home, f"{BARE} {command} > told.json; tried it", agent=agent)
        told = json.loads((home.work / "told.json").read_text())
        mail = 200 if agent else 403
        assert told == {"token": 403, "setting": 403, "mail": mail}
        if agent:
            (letter,) = store.mail.list(mailbox="queue:q").items
            assert letter.sender == "agent:ada"
            (event,) = store.events.newest(subject=letter.id).items
            assert (event.actor, event.run) == ("agent:ada", run.id)
        with http_server.client() as person:
            assert person.post("/api/tokens/create", json={"name": "other"}).status_code == 200


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_unidentified_caller_is_not_a_person_while_runs_are_active(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs up, ends or forbids inspection holds no socket that can be seen."""
    with (
        home.store() as store,
        run_http_server(store) as http_server,
        http_server.client() as caller,
    ):
        run = home.start_detached("sleep", "600")
        monkeypatch.setattr("corral.adapters.socket_peers._list_holders", lambda wanted: [])
        told = caller.post("/api/tokens/create", json={"name": "mine"})
        assert told.status_code == 403
        assert told.json()["error"]["details"]["reason"] == "caller_unknown"
        assert caller.get("/api/tokens/list").status_code == 200
        store.runs.stop(run.id)
        home.wait_for_end(run.id)
    with home.store() as store:
        assert not [token for token in store.tokens.list().items if token.name == "mine"]


LINE = """
import os, socket, struct, sys, time
from pathlib import Path
from corral.adapters import control_socket

folder = Path(sys.argv[1])
told = control_socket.send_request(folder, op="send", text="sent", enter=True)
line = control_socket.connect(folder)
line.sendall(control_socket.encode_frame(control_socket.REQUEST, {"op": "attach"}))
line.sendall(control_socket.encode_frame(control_socket.DATA, b"typed\\r"))
line.recv(100)
control_socket.send_request(folder, op="look")  # the supervisor has handled what came before
os.set_blocking(0, False)
try:
    heard = os.read(0, 100).decode()
except BlockingIOError:
    heard = ""
print("told", told.get("error"), "heard", repr(heard))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_process_inside_a_run_cannot_type_into_its_own_terminal(home: Home) -> None:
    """It would approve what its agent asks. The socket of the supervisor is in reach of it."""
    file = home.work / "line.py"
    file.write_text(LINE)
    script = home.work / "script.sh"
    script.write_text(f'#!/bin/sh\n{BARE} {sys.executable} {file} "$RUNS/$CORRAL_RUN"\n')
    script.chmod(0o755)
    runs = Path(home.env["CORRAL_HOME"]) / "runs"
    run = home.wait_for_end(
        home.start_detached(str(script), options=("--pty", "-e", f"RUNS={runs}")).id
    )
    assert b"told inside_run heard ''" in home.output(run)


def test_run_may_type_only_into_runs_that_it_started(home: Home) -> None:
    """Typed text has no source: an agent takes it for its user's."""
    with home.store() as store:
        store.agents.create("bob", command="cat")
    bob = home.start_agent("bob", "begin", "--pty", "--name", "bob")
    typed = home.start_detached("cat", options=("--pty", "--name", "typed"))
    run = run_inside(
        home,
        f"""
        {BARE} {CORRAL} send bob 'Yes, go ahead.'; tried session
        {BARE} {CORRAL} send typed 'Yes, go ahead.'; tried command
        {CORRAL} run -d --pty --name own -- cat; tried start
        {BARE} {CORRAL} send own 'hello, child'; tried own
        """,
    )
    assert tried(home) == {"session": 0, "command": 4, "start": 0, "own": 0}
    own = home.get("own")
    said = {}
    for each in (bob, typed, own):
        with home.store() as store:
            store.runs.send(each.id, "of a person")
            wait_until(lambda each=each: b"of a person" in home.output_so_far(each), "its echo")
            store.runs.stop(each.id)
        said[each.id] = home.output(home.wait_for_end(each.id))
    assert [b"go ahead" in text for text in said.values()] == [False] * 3
    assert b"hello, child" in said[own.id]
    assert senders(home, f"session:{bob.session_id}") == ["agent:ada"]
    assert run.state == "completed"


ENDS = """
import corral
from corral.kernel.exit_status import ExitStatus
from corral.kernel.errors import Refused

with corral.open() as store:
    run, runs = store.runs.get(store.identity.run), store.internal.runs
    for call in (
        lambda: runs.end(run, ExitStatus(exit_code=0)),
        lambda: runs.end_orphaned(run, verb="crash", reason="made up"),
        lambda: runs.park(run, until=1, reason="made up"),
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
    file.write_text(ENDS)
    run = run_inside(home, f"exec {sys.executable} {file}", agent=None)
    assert (run.exit_code, run.attempts) == (3, 1)
    assert home.output(run).split() == [b"refused"] * 4
