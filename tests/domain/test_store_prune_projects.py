"""How long things are kept is a matter of the table, and of the project that has them."""

import random
import threading
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from corral.api import Corral
from corral.db.statement import Statement
from corral.db.tx import Tx
from corral.domain.settings.model import DEFINITIONS
from corral.kernel.clock import DAY, HOUR, ManualClock
from corral.kernel.errors import Invalid
from tests.support.cli_runner import Cli
from tests.support.state_rows import NAMES, ROWS, TIED
from tests.support.store import rows, unchanged

# The table, the state in which its rows are over, the column that says since when, the setting.
OVER = [
    ("letters", "done", "ended_at", "mail"),
    ("schedules", "cancelled", "ended_at", "schedules"),
    ("occurrences", "put", "ended_at", "schedules"),
    ("alerts", "removed", "ended_at", "alerts"),
    ("delegations", "done", "ended_at", "delegations"),
    ("tasks", "done", "ended_at", "tasks"),
    ("races", "completed", "ended_at", "races"),
    ("locks", "released", "ended_at", "locks"),
    ("questions", "answered", "ended_at", "questions"),
    ("decisions", "confirmed", "ended_at", "decisions"),
    ("groups", "archived", "ended_at", "groups"),
    ("notes", "superseded", "ended_at", "notes"),
    ("sessions", "closed", "closed_at", "sessions"),
    ("runs", "completed", "ended_at", "runs"),
]
PLAIN: list[tuple[str, dict[str, Any], str, str]] = [
    ("events", {"actor": "x", "kind": "k", "verb": "v", "subject": "s"}, "at", "events"),
    ("charges", dict.fromkeys(("input", "output", "cache_read", "cache_write", "reasoning"), 1),
     "at", "charges"),
    ("plans", {"entries": "[]"}, "updated_at", "plans"),
    ("progress", {"agent_id": "agt_1", "summary": "s"}, "updated_at", "plans"),
    ("file_touches", {"owner": "user:eve", "count": 1}, "last_at", "file_touches"),
]  # fmt: skip
KEYED = {"plans": "subject", "progress": "id", "file_touches": "path"}
BORN = {"file_touches": "first_at"}
NEWEST_STAYS = ("letters", "events", "charges", "locks", "file_touches")
NUMBERS = count(1)


def insert(tx: Tx, table: str, values: dict[str, Any]) -> None:
    names, places = ", ".join(values), ", ".join(f":{name}" for name in values)
    tx.run(Statement(f"INSERT INTO {table} ({names}) VALUES ({places})"), **values)


def add(tx: Tx, table: str, project: str | None, at: int) -> None:
    """A row that is over since a moment."""
    if table in ("tasks", "races", "locks", "file_touches"):
        project = project or "prj_other"  # theirs always have one
    nth = next(NUMBERS)
    for name, state, ended, _ in OVER:
        if name == table:
            values = {**ROWS[table], **TIED[table](state), "state": state}
            values |= {each: f"{values[each]}{nth:05}" for each in NAMES if each in values}
            insert(tx, table, values | {ended: at, "created_at": at, "project_id": project})
            return
    own, at_column = next((given, at_) for name, given, at_, _ in PLAIN if name == table)
    values = {**own, at_column: at, "project_id": project}
    values |= {KEYED[table]: f"{nth}"} if table in KEYED else {}
    values |= {BORN[table]: at} if table in BORN else {}
    insert(tx, table, values)


def insert_post(tx: Tx, group: str, at: int, author: str) -> None:
    """A post, and what others think of it."""
    nth = next(NUMBERS)
    post = {"id": f"pst_{at:015}{nth}", "group_id": group, "number": nth, "author": author}
    insert(tx, "posts", post | {"text": "t", "at": at})
    for emoji in ("up", "down")[: nth % 3]:
        mark = {"post_id": post["id"], "emoji": emoji, "member": "m", "at": at + DAY}
        insert(tx, "reactions", mark)


def counted(store: Corral, *, dry_run: bool) -> Counter[tuple[str, str | None]]:
    found = store.db.prune(dry_run=dry_run)
    assert len({(each.table, each.project_id) for each in found}) == len(found)
    return Counter({(each.table, each.project_id): each.rows for each in found})


def test_dry_run_counts_rows_per_table_and_project(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    """Many rows of all ages, of projects that chose times of their own and of nobody, are counted,
    then forgotten, and both are what a plain look at them would say."""
    chance = random.Random(8)
    clock.advance(4_000 * DAY)
    projects: list[str | None] = [None]
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        projects.append(store.projects.register(tmp_path / name).id)
    tables = [(each[0], each[-1]) for each in (*OVER, *PLAIN)]
    keep: dict[str, dict[str | None, int]] = {}
    for setting in sorted({setting for _, setting in tables} | {"outputs"}):
        keep[setting] = {None: 20 * DAY}
        store.settings.set(f"{setting}.retention_ms", 20 * DAY)
        for project in chance.sample(projects[1:], chance.randint(1, 2)):
            keep[setting][project] = own = chance.choice([2, 10, 100]) * DAY
            store.settings.set(f"{setting}.retention_ms", own, scope=f"project:{project}")
    groups = {project: store.groups.create("crew", project=project).id for project in projects}
    for _ in range(2):
        expected: Counter[tuple[str, str | None]] = Counter()
        with store.transaction() as tx:
            for table, setting in tables:
                for _ in range(25):
                    project, age = chance.choice(projects), chance.randint(1, 150)
                    at = clock.now() - age * DAY + chance.choice([-1, 0, 1])
                    add(tx, table, project, at)
                    chosen = project if project in keep[setting] else None
                    expected[table, chosen] += at < clock.now() + HOUR - keep[setting][chosen]
                if table in NEWEST_STAYS:
                    add(tx, table, None, clock.now())
            for _ in range(30):
                project, age = chance.choice(projects), chance.randint(1, 150)
                insert_post(tx, groups[project], clock.now() - age * DAY, "user:eve")
        seal_some(store, chance, clock, projects, keep["outputs"], expected)
        # What is ended on the way writes letters and events; they do not change what is counted.
        store.mail.put("agent:ada", 1, expires_at=clock.now() + HOUR, sender="user:eve")
        clock.advance(HOUR)
        with unchanged(store):
            dry = counted(store, dry_run=True)
        assert dry["posts", None] + dry["reactions", None] > 0
        assert counted(store, dry_run=False) == dry
        assert {key: dry[key] for key in expected} == dict(expected)
        assert (
            rows(store, "SELECT 1 FROM reactions WHERE post_id NOT IN (SELECT id FROM posts)") == []
        )
        assert not any(counted(store, dry_run=True).values()), "nothing old is left"


def seal_some(
    store: Corral,
    chance: random.Random,
    clock: ManualClock,
    projects: list[str | None],
    keep: dict[str | None, int],
    expected: Counter[tuple[str, str | None]],
) -> None:
    """Outputs have the project of their runs."""
    with store.transaction() as tx:
        for _ in range(20):
            project, at = chance.choice(projects), clock.now() - chance.randint(1, 150) * DAY
            nth = next(NUMBERS)
            run = {**ROWS["runs"], "id": f"run_live_{nth}", "state": "queued"}
            insert(tx, "runs", run | {"project_id": project, "created_at": at})
            output = {**ROWS["outputs"], "run_id": run["id"], "state": "sealed", "sealed_at": at}
            insert(tx, "outputs", output)
            chosen = project if project in keep else None
            expected["outputs", chosen] += at < clock.now() + HOUR - keep[chosen]


def test_project_setting_overrides_retention(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    for name in ("short", "long"):
        (tmp_path / name).mkdir()
    short, long = (store.projects.register(tmp_path / name).id for name in ("short", "long"))
    store.settings.set("mail.retention_ms", DAY, scope=f"project:{short}")
    store.settings.set("mail.retention_ms", 90 * DAY, scope=f"project:{long}")
    ids = {}
    for project in (short, long, None):
        put = store.mail.put("queue:x", 1, project=project)
        ids[project] = store.mail.ack(store.mail.claim("queue:x", owner="o")[0]).id
        assert put.id == ids[project]
    store.mail.put("queue:x", "the newest")

    def left() -> list[str | None]:
        found = {f"let_{seq}" for (seq,) in rows(store, "SELECT seq FROM letters")}
        return [project for project, id in ids.items() if id in found]

    clock.advance(2 * DAY)
    store.db.prune()
    assert left() == [long, None]
    clock.advance(30 * DAY)
    told = {each.project_id: each for each in store.db.prune() if each.table == "letters"}
    assert left() == [long]
    assert (told[long].retention_ms, told[long].rows, told[None].rows) == (90 * DAY, 0, 1)
    store.settings.unset("mail.retention_ms", scope=f"project:{long}")
    store.db.prune()
    assert left() == []


def test_rows_without_a_project_use_the_global_retention(store: Corral) -> None:
    """A time that nobody would obey is refused."""
    for name, known in DEFINITIONS.items():
        if name.endswith(".retention_ms") and known.scopes == ("global",):
            with pytest.raises(Invalid, match="its scopes are"):
                store.settings.set(name, 30 * DAY, scope="project:prj_x")


def test_prune_command_lists_projects_with_own_retention(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cli = Cli(capsys, f"sqlite:///{tmp_path}/corral.db")
    project = cli.json("project", "register", str(tmp_path))["id"]
    cli("setting", "set", "runs.retention_ms", "7d", "--project", project)
    found = cli.json("db", "prune", "--dry-run")
    assert [each["project_id"] for each in found if each["table"] == "runs"] == [None, project]
    assert project in cli("db", "prune", "--dry-run").out


def test_concurrent_prunes_count_each_row_once(store: Corral, clock: ManualClock) -> None:
    clock.advance(4_000 * DAY)
    tables = ("runs", "notes", "groups", "tasks", "races", "letters")
    with store.transaction() as tx:
        for table in tables:
            for _ in range(30):
                add(tx, table, None, DAY)
        add(tx, "letters", None, clock.now())
    expected = counted(store, dry_run=True)
    found: list[Counter[tuple[str, str | None]]] = []
    start = threading.Barrier(3)

    def prune() -> None:
        start.wait()
        found.append(counted(store, dry_run=False))

    threads = [threading.Thread(target=prune) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3, "none of them failed"
    together = sum(found, Counter())
    assert {table: together[table, None] for table in tables} == dict.fromkeys(tables, 30)
    assert {table: expected[table, None] for table in tables} == dict.fromkeys(tables, 30)
