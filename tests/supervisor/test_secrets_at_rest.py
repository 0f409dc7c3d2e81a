"""No secret is stored in plain text, and all files of the home are private.

The tests put a secret into every input that Corral accepts, then search every byte of the home, the
store, its backup and its exports, including compressed data. Files that an agent writes into its
worktree are excluded: they are committed and exported unchanged.
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

KNOWN_SECRET = "hunter2-7f3a9c51e0-Zr8"
SECRET_BY_PATTERN = KEY
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

# Split in two: command lines of people are stored unchanged.
PRINT_SECRETS = f"""
import os, sys, json, subprocess
value, key = os.environ["PASS"], "{SECRET_BY_PATTERN[:4]}" + "{SECRET_BY_PATTERN[4:]}"
for secret in (value, key):
    print("out", secret, json.dumps({{"it": secret}}), flush=True)
    print("err", secret, file=sys.stderr, flush=True)
command = [sys.executable, "-m", "corral", "note", "add", f"keep {{value}}", "--agent", "ada"]
subprocess.run(command, check=True)
sys.exit(f"it broke: {{value}} {{key}}")
"""


def store_secret_by_tools(store: Corral, project: str) -> None:
    """Pass a key to every tool for agents that accepts text."""
    text = f"the key is {SECRET_BY_PATTERN}, keep it"
    ada = Agent(store, "ada", project=project)
    ada("task_add", tasks=[{"key": "t1", "title": text, "description": text}])
    ada("task_add", tasks=[{"key": "t2", "title": "x"}])
    ada("progress", summary=text)
    ada("plan", steps=[{"content": text}])
    ada("lock", path="a.txt", reason=text)
    ada("send", to="ben", text=text, data={"deep": [text]})
    ada("group_post", text=text)
    ada("ask", text=text, options=[text, "no"])
    ada("decide", title=text, rationale=text, alternatives=[text])
    ada("remember", text=text)
    ada("timer_set", text=text, in_seconds=600)
    delegation = ada("delegate", to="ben", text=text, context=text)
    Agent(store, "ben", project=project)("result", delegation=delegation["delegation"], result=text)
    ada("task_claim", task="t1")
    ada("task_submit", task="t1", text=text, commands=[{"command": text, "exit_code": 0}])
    ada("task_claim", task="t2")
    ada("task_fail", task="t2", reason=text)


def store_secret_by_library(store: Corral, project: str) -> None:
    """Pass both secrets to every operation that accepts text."""
    text = f"{SECRET_BY_PATTERN} and {KNOWN_SECRET}"
    store.agents.edit("ada", instructions=text)
    session = store.sessions.open("ada", project=project, title=text)
    store.sessions.append(session.id, "user", text)
    store.sessions.set_state(session.id, "at", {"deep": [text]})
    store.notes.add(text, project=project)
    store.groups.create("crew", members=["agent:ada", "agent:ben"])
    store.groups.post("crew", text, author="agent:ada")
    store.decisions.record(text, rationale=text, alternatives=[text], project=project)
    store.questions.withdraw(store.questions.ask(text, options=[text]).id, reason=text)
    letter = store.mail.claim(store.mail.put("queue:x", [text]).mailbox, owner="me")[0]
    store.mail.fail(letter, text)
    store.timers.set("agent:ada", text, delay_ms=60_000)
    store.schedules.create("agent:ada", text, every_ms=3_600_000)
    run = store.runs.start(prompt=text, agent="ada", project=project)
    store.runs.stop(run.id, reason=text)
    store.sessions.close(session.id)


# Run as a check and as the setup command.
PRINT_IN_CHECK = (
    f"import os; print('{SECRET_BY_PATTERN[:4]}' + '{SECRET_BY_PATTERN[4:]}', "
    "os.environ.get('PASS'))"
)


def store_secret_by_race(home: Home, store: Corral) -> None:
    """Run a race whose prompt, agents and checks contain the secrets, then export the winner."""
    store.secrets.resolve("pass")
    text = f"Use {SECRET_BY_PATTERN} and {KNOWN_SECRET}"
    repository = make_repository(home.folder / "raced", **{"prints.py": PRINT_IN_CHECK})
    shell = 'cat; python3 prints.py; echo "$PASS" >&2; echo work > made'
    store.agents.create("cara", command=f"sh -c '{shell}'")
    race = store.races.start(
        text,
        agents=["cara", "cara"],
        project=str(repository),
        setup="python3 prints.py",
        checks=["python3 prints.py"],
        secrets={"PASS": "env:THE_PASS"},
        variations=[text],
    )
    ended = store.races.wait(race.id, timeout_ms=60_000)
    assert [attempt.passed for attempt in ended.latest.attempts] == [True, True]
    store.races.select(race.id, "1", reason=text)
    store.races.merge(race.id)
    export_result = store.races.export(race.id, str(home.folder / "winner"))
    logs = [entry.path for entry in export_result.entries if entry.path.startswith("logs/")]
    assert len(logs) == 2
    for log in logs:
        assert b"[redacted]" in (home.folder / "winner" / log).read_bytes()
    history = git(repository, "log", "--all", "--format=%B %D")
    assert race.id in history, "the merge commit names the race"
    assert SECRET_BY_PATTERN not in history
    assert KNOWN_SECRET not in history
    store.races.clean(race.id, confirm=True, pooled=True)
    store.projects.export(race.project_id, home.folder / "project.db")


def decompress(data: bytes) -> bytes:
    if not data.startswith(ZSTD_MAGIC):
        return data
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True)
    return data + reader.read()


def read_everything(home: Home) -> Iterator[tuple[str, bytes]]:
    """Yield every file below the home, and on PostgreSQL every value of every table."""
    for file in home.folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            yield str(file), decompress(file.read_bytes())
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
                    yield f"a row of {table}", decompress(data)


def store_secret_everywhere(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_PASS", KNOWN_SECRET)
    env = home.env | {"THE_PASS": KNOWN_SECRET}
    with home.store() as store:
        project = store.projects.register(home.work)
        store.agents.create("ada", command="true")
        store.agents.create("ben", command="true")
        store.secrets.set("pass", "env:THE_PASS")
        store.secrets.resolve("pass")  # its value is redacted from now on
        store_secret_by_library(store, project.id)
        store_secret_by_tools(store, project.id)
    options = ("--secret", "PASS=env:THE_PASS", "--name", "leaky")
    for terminal in ((), ("--pty",)):
        run = home.start_detached(
            sys.executable, "-c", PRINT_SECRETS, options=(*options, *terminal), env=env
        )
        assert home.wait_for_end(run.id).state == "failed"
        home.wait_for_all_processes()
        assert b"[redacted]" in home.output(run)
    with home.store() as store:
        notes = [note.text for note in store.notes.list(agent="ada").items]
        assert "keep [redacted]" in notes, "a command in a run redacts the secrets of the run"
        store.search.catch_up()
        store_secret_by_race(home, store)
        store.db.backup(home.folder / "home" / "backup.db")


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_no_secret_is_stored_in_the_home(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    store_secret_everywhere(home, monkeypatch)
    size = 0
    for source, data in read_everything(home):
        size += len(data)
        assert KNOWN_SECRET.encode() not in data, source
        index = data.find(SECRET_BY_PATTERN.encode())
        assert index < 0, f"{source}: {data[max(0, index - 200) : index + 60]!r}"
    print(f"{size:,} bytes")
    assert size > 100_000


def test_all_files_of_the_home_are_private(home: Home) -> None:
    """Includes files and sockets that exist only while a daemon or a run is active."""
    home.json("up", "--port", "0", "--json")
    try:
        run = home.start_detached("sleep", "600")
        with home.store() as store:
            store.projects.register(home.work)
            store.db.backup(Path(home.env["CORRAL_HOME"]) / "backup.db")
            top = Path(home.env["CORRAL_HOME"])
            paths = [top, *top.rglob("*")]
            if path := store.db.path:
                paths += sorted(path.parent.glob(f"{path.name}*"))
            kinds = set()
            for file in paths:
                try:
                    mode = os.lstat(file).st_mode
                except FileNotFoundError:  # renamed in the meantime
                    continue
                kinds.add(stat.S_IFMT(mode))
                assert not stat.S_IMODE(mode) & 0o077 or stat.S_ISLNK(mode), f"{file}: {mode:o}"
            store.runs.stop(run.id)
        assert {stat.S_IFREG, stat.S_IFDIR, stat.S_IFSOCK} <= kinds
        home.wait_for_end(run.id)
    finally:
        home.corral("down")
    wait_until(lambda: not home.processes(), "all processes exited")
