"""No secret at rest: keys are put wherever an agent can put them, and then every byte that there is
is looked at: the home, the store, its back-up, what is written out of it, and what is packed in any
of them. And nobody else can read any of it.

What an agent writes into a file of its worktree is its work: that is committed, and written out
with a winner, byte for byte.
"""

import io
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import zstandard

from corral.api import Corral
from tests.support.fake_keys import KEY
from tests.support.home import Home, wait_until
from tests.support.mcp_clients import Agent
from tests.support.race_helpers import git, make_repository

BY_VALUE = "hunter2-7f3a9c51e0-Zr8"
BY_SHAPE = KEY
PACKED = b"\x28\xb5\x2f\xfd"

# In two pieces: what a person writes into a command line is theirs, and kept as it is.
SAYS = f"""
import os, sys, json, subprocess
value, found = os.environ["PASS"], "{BY_SHAPE[:4]}" + "{BY_SHAPE[4:]}"
for word in (value, found):
    print("out", word, json.dumps({{"it": word}}), flush=True)
    print("err", word, file=sys.stderr, flush=True)
told = [sys.executable, "-m", "corral", "note", "add", f"keep {{value}}", "--agent", "ada"]
subprocess.run(told, check=True)
sys.exit(f"it broke: {{value}} {{found}}")
"""


def tell_everywhere(store: Corral, project: str) -> None:
    """An agent that came by a key puts it into each tool that takes words."""
    words = f"the key is {BY_SHAPE}, keep it"
    ada = Agent(store, "ada", project=project)
    ada("task_add", tasks=[{"key": "t1", "title": words, "description": words}])
    ada("task_add", tasks=[{"key": "t2", "title": "x"}])
    ada("progress", summary=words)
    ada("plan", steps=[{"content": words}])
    ada("lock", path="a.txt", reason=words)
    ada("send", to="ben", text=words, data={"deep": [words]})
    ada("group_post", text=words)
    ada("ask", text=words, options=[words, "no"])
    ada("decide", title=words, rationale=words, alternatives=[words])
    ada("remember", text=words)
    ada("timer_set", text=words, in_seconds=600)
    handed = ada("delegate", to="ben", text=words, context=words)
    Agent(store, "ben", project=project)("result", delegation=handed["delegation"], result=words)
    ada("task_claim", task="t1")
    ada("task_submit", task="t1", text=words, commands=[{"command": words, "exit_code": 0}])
    ada("task_claim", task="t2")
    ada("task_fail", task="t2", reason=words)


def say_everywhere(store: Corral, project: str) -> None:
    """People, programs and channels put it into whatever the library takes words by."""
    words = f"{BY_SHAPE} and {BY_VALUE}"
    store.agents.edit("ada", instructions=words)
    session = store.sessions.open("ada", project=project, title=words)
    store.sessions.append(session.id, "user", words)
    store.sessions.set_state(session.id, "at", {"deep": [words]})
    store.notes.add(words, project=project)
    store.groups.create("crew", members=["agent:ada", "agent:ben"])
    store.groups.post("crew", words, author="agent:ada")
    store.decisions.record(words, rationale=words, alternatives=[words], project=project)
    store.questions.withdraw(store.questions.ask(words, options=[words]).id, reason=words)
    letter = store.mail.claim(store.mail.put("queue:x", [words]).mailbox, owner="me")[0]
    store.mail.fail(letter, words)
    store.timers.set("agent:ada", words, delay_ms=60_000)
    store.schedules.create("agent:ada", words, every_ms=3_600_000)
    run = store.runs.start(prompt=words, agent="ada", project=project)
    store.runs.stop(run.id, reason=words)
    store.sessions.close(session.id)


# A check and a set-up run what an agent wrote.
PRINTS = f"import os; print('{BY_SHAPE[:4]}' + '{BY_SHAPE[4:]}', os.environ.get('PASS'))"


def race_everywhere(home: Home, store: Corral) -> None:
    """Agents race that were told a key, print it and have checks that do; the winner is written out
    with what all of them printed, and so is the project."""
    store.secrets.resolve("pass")
    words = f"Use {BY_SHAPE} and {BY_VALUE}"
    repository = make_repository(home.folder / "raced", **{"prints.py": PRINTS})
    shell = 'cat; python3 prints.py; echo "$PASS" >&2; echo work > made'
    store.agents.create("cara", command=f"sh -c '{shell}'")
    race = store.races.start(
        words,
        agents=["cara", "cara"],
        project=str(repository),
        setup="python3 prints.py",
        checks=["python3 prints.py"],
        secrets={"PASS": "env:THE_PASS"},
        variations=[words],
    )
    ended = store.races.wait(race.id, timeout_ms=60_000)
    assert [attempt.passed for attempt in ended.latest.attempts] == [True, True]
    store.races.select(race.id, "1", reason=words)
    store.races.merge(race.id)
    made = store.races.export(race.id, str(home.folder / "winner"))
    logs = [entry.path for entry in made.entries if entry.path.startswith("logs/")]
    assert len(logs) == 2
    for log in logs:
        assert b"[redacted]" in (home.folder / "winner" / log).read_bytes()
    history = git(repository, "log", "--all", "--format=%B %D")
    assert race.id in history, "a merge says of what"
    assert BY_SHAPE not in history
    assert BY_VALUE not in history
    store.races.clean(race.id, confirm=True, pooled=True)
    store.projects.export(race.project_id, home.folder / "project.db")


def unpacked(data: bytes) -> bytes:
    if not data.startswith(PACKED):
        return data
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True)
    return data + reader.read()


def all_bytes(home: Home) -> Iterator[tuple[str, bytes]]:
    """Every file below the home, with the store where that is a file; every row where it is not."""
    for file in home.folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            yield str(file), unpacked(file.read_bytes())
    if not home.url.startswith("postgres"):
        return
    with psycopg.connect(home.url, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        ).fetchall()
        for (table,) in tables:
            for row in connection.execute(f"SELECT * FROM {table}".encode()):
                for value in row:
                    data = bytes(value) if isinstance(value, bytes) else str(value).encode()
                    yield f"a row of {table}", unpacked(data)


def use_everything(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_PASS", BY_VALUE)
    env = home.env | {"THE_PASS": BY_VALUE}
    with home.store() as store:
        project = store.projects.register(home.work)
        store.agents.create("ada", command="true")
        store.agents.create("ben", command="true")
        store.secrets.set("pass", "env:THE_PASS")
        store.secrets.resolve("pass")  # known by its value from here on
        say_everywhere(store, project.id)
        tell_everywhere(store, project.id)
    options = ("--secret", "PASS=env:THE_PASS", "--name", "leaky")
    for more in ((), ("--pty",)):
        run = home.start_detached(sys.executable, "-c", SAYS, options=(*options, *more), env=env)
        assert home.wait_for_end(run.id).state == "failed"
        home.wait_for_all_processes()
        assert b"[redacted]" in home.output(run)
    with home.store() as store:
        notes = [note.text for note in store.notes.list(agent="ada").items]
        assert "keep [redacted]" in notes, "a command in a run knows what the run was given"
        store.search.catch_up()
        race_everywhere(home, store)
        store.db.backup(home.folder / "home" / "backup.db")


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_no_secret_is_stored_in_the_home(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    use_everything(home, monkeypatch)
    looked = 0
    for where, data in all_bytes(home):
        looked += len(data)
        assert BY_VALUE.encode() not in data, where
        at = data.find(BY_SHAPE.encode())
        assert at < 0, f"{where}: {data[max(0, at - 200) : at + 60]!r}"
    print(f"{looked:,} bytes")
    assert looked > 100_000


def test_all_files_of_the_home_are_private(home: Home) -> None:
    """Files, folders and sockets, those that only a daemon or a running run has among them."""
    home.json("up", "--port", "0", "--json")
    try:
        run = home.start_detached("sleep", "600")
        with home.store() as store:
            store.projects.register(home.work)
            store.db.backup(Path(home.env["CORRAL_HOME"]) / "backup.db")
            top = Path(home.env["CORRAL_HOME"])
            found = [top, *top.rglob("*")]
            if path := store.db.path:
                found += sorted(path.parent.glob(f"{path.name}*"))
            kinds = set()
            for each in found:
                try:
                    mode = os.lstat(each).st_mode
                except FileNotFoundError:  # became another one meanwhile
                    continue
                kinds.add(stat.S_IFMT(mode))
                assert not stat.S_IMODE(mode) & 0o077 or stat.S_ISLNK(mode), f"{each}: {mode:o}"
            store.runs.stop(run.id)
        assert {stat.S_IFREG, stat.S_IFDIR, stat.S_IFSOCK} <= kinds
        home.wait_for_end(run.id)
    finally:
        home.corral("down")
    wait_until(lambda: not home.processes(), "all have ended")
