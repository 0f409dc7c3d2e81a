"""Retention settings of tables and projects, and the counts of a prune."""

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

# Table, final state, column with the time of the end, prefix of the setting.
ENDED_ROWS = [
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
STATELESS_ROWS: list[tuple[str, dict[str, Any], str, str]] = [
    ("events", {"actor": "x", "kind": "k", "verb": "v", "subject": "s"}, "at", "events"),
    ("charges", dict.fromkeys(("input", "output", "cache_read", "cache_write", "reasoning"), 1),
     "at", "charges"),
    ("plans", {"entries": "[]"}, "updated_at", "plans"),
    ("progress", {"agent_id": "agt_1", "summary": "s"}, "updated_at", "plans"),
    ("file_touches", {"owner": "user:eve", "count": 1}, "last_at", "file_touches"),
]  # fmt: skip
KEY_COLUMNS = {"plans": "subject", "progress": "id", "file_touches": "path"}
CREATED_COLUMNS = {"file_touches": "first_at"}
NEWEST_KEPT = ("letters", "events", "charges", "locks", "file_touches")
NUMBERS = count(1)


def insert_row(tx: Tx, table: str, values: dict[str, Any]) -> None:
    names, placeholders = ", ".join(values), ", ".join(f":{name}" for name in values)
    tx.run(Statement(f"INSERT INTO {table} ({names}) VALUES ({placeholders})"), **values)


def insert_ended_row(tx: Tx, table: str, project: str | None, at: int) -> None:
    """Insert a row that ended at a time."""
    if table in ("tasks", "races", "locks", "file_touches"):
        project = project or "prj_other"  # these tables require a project
    number = next(NUMBERS)
    for name, state, end_column, _ in ENDED_ROWS:
        if name == table:
            values = {**ROWS[table], **TIED[table](state), "state": state}
            values |= {
                column: f"{values[column]}{number:05}" for column in NAMES if column in values
            }
            insert_row(
                tx, table, values | {end_column: at, "created_at": at, "project_id": project}
            )
            return
    fields, at_column = next(
        (columns, time_column) for name, columns, time_column, _ in STATELESS_ROWS if name == table
    )
    values = {**fields, at_column: at, "project_id": project}
    values |= {KEY_COLUMNS[table]: f"{number}"} if table in KEY_COLUMNS else {}
    values |= {CREATED_COLUMNS[table]: at} if table in CREATED_COLUMNS else {}
    insert_row(tx, table, values)


def insert_post(tx: Tx, group: str, at: int, author: str) -> None:
    """Insert a post and up to two reactions."""
    number = next(NUMBERS)
    post = {"id": f"pst_{at:015}{number}", "group_id": group, "number": number, "author": author}
    insert_row(tx, "posts", post | {"text": "t", "at": at})
    for emoji in ("up", "down")[: number % 3]:
        reaction = {"post_id": post["id"], "emoji": emoji, "member": "m", "at": at + DAY}
        insert_row(tx, "reactions", reaction)


def prune_counts(store: Corral, *, dry_run: bool) -> Counter[tuple[str, str | None]]:
    results = store.db.prune(dry_run=dry_run)
    assert len({(result.table, result.project_id) for result in results}) == len(results)
    return Counter({(result.table, result.project_id): result.rows for result in results})


def test_dry_run_counts_rows_per_table_and_project(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    """The counts of a dry run equal those of a prune and of a plain query, for rows of all ages."""
    rng = random.Random(8)
    clock.advance(4_000 * DAY)
    projects: list[str | None] = [None]
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        projects.append(store.projects.register(tmp_path / name).id)
    tables = [(entry[0], entry[-1]) for entry in (*ENDED_ROWS, *STATELESS_ROWS)]
    retention: dict[str, dict[str | None, int]] = {}
    for setting in sorted({setting for _, setting in tables} | {"outputs"}):
        retention[setting] = {None: 20 * DAY}
        store.settings.set(f"{setting}.retention_ms", 20 * DAY)
        for project in rng.sample(projects[1:], rng.randint(1, 2)):
            retention[setting][project] = retention_ms = rng.choice([2, 10, 100]) * DAY
            store.settings.set(f"{setting}.retention_ms", retention_ms, scope=f"project:{project}")
    groups = {project: store.groups.create("crew", project=project).id for project in projects}
    for _ in range(2):
        expected: Counter[tuple[str, str | None]] = Counter()
        with store.transaction() as tx:
            for table, setting in tables:
                for _ in range(25):
                    project, age = rng.choice(projects), rng.randint(1, 150)
                    at = clock.now() - age * DAY + rng.choice([-1, 0, 1])
                    insert_ended_row(tx, table, project, at)
                    scope = project if project in retention[setting] else None
                    expected[table, scope] += at < clock.now() + HOUR - retention[setting][scope]
                if table in NEWEST_KEPT:
                    insert_ended_row(tx, table, None, clock.now())
            for _ in range(30):
                project, age = rng.choice(projects), rng.randint(1, 150)
                insert_post(tx, groups[project], clock.now() - age * DAY, "user:eve")
        seal_outputs(store, rng, clock, projects, retention["outputs"], expected)
        # Expiry during the prune writes letters and events, which do not change the counts.
        store.mail.put("agent:ada", 1, expires_at=clock.now() + HOUR, sender="user:eve")
        clock.advance(HOUR)
        with unchanged(store):
            counts = prune_counts(store, dry_run=True)
        assert counts["posts", None] + counts["reactions", None] > 0
        assert prune_counts(store, dry_run=False) == counts
        assert {key: counts[key] for key in expected} == dict(expected)
        assert (
            rows(store, "SELECT 1 FROM reactions WHERE post_id NOT IN (SELECT id FROM posts)") == []
        )
        assert not any(prune_counts(store, dry_run=True).values()), "no expired rows are left"


def seal_outputs(
    store: Corral,
    rng: random.Random,
    clock: ManualClock,
    projects: list[str | None],
    retention: dict[str | None, int],
    expected: Counter[tuple[str, str | None]],
) -> None:
    """Insert sealed outputs, which have the project of their runs."""
    with store.transaction() as tx:
        for _ in range(20):
            project, at = rng.choice(projects), clock.now() - rng.randint(1, 150) * DAY
            number = next(NUMBERS)
            run = {**ROWS["runs"], "id": f"run_live_{number}", "state": "queued"}
            insert_row(tx, "runs", run | {"project_id": project, "created_at": at})
            output = {**ROWS["outputs"], "run_id": run["id"], "state": "sealed", "sealed_at": at}
            insert_row(tx, "outputs", output)
            scope = project if project in retention else None
            expected["outputs", scope] += at < clock.now() + HOUR - retention[scope]


def test_project_setting_overrides_retention(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    for name in ("short", "long"):
        (tmp_path / name).mkdir()
    short_project, long_project = (
        store.projects.register(tmp_path / name).id for name in ("short", "long")
    )
    store.settings.set("mail.retention_ms", DAY, scope=f"project:{short_project}")
    store.settings.set("mail.retention_ms", 90 * DAY, scope=f"project:{long_project}")
    ids = {}
    for project in (short_project, long_project, None):
        letter = store.mail.put("queue:x", 1, project=project)
        ids[project] = store.mail.ack(store.mail.claim("queue:x", owner="o")[0]).id
        assert letter.id == ids[project]
    store.mail.put("queue:x", "newest")

    def list_kept_projects() -> list[str | None]:
        letter_ids = {f"let_{seq}" for (seq,) in rows(store, "SELECT seq FROM letters")}
        return [project for project, id in ids.items() if id in letter_ids]

    clock.advance(2 * DAY)
    store.db.prune()
    assert list_kept_projects() == [long_project, None]
    clock.advance(30 * DAY)
    results = {
        result.project_id: result for result in store.db.prune() if result.table == "letters"
    }
    assert list_kept_projects() == [long_project]
    assert (results[long_project].retention_ms, results[long_project].rows, results[None].rows) == (
        90 * DAY,
        0,
        1,
    )
    store.settings.unset("mail.retention_ms", scope=f"project:{long_project}")
    store.db.prune()
    assert list_kept_projects() == []


def test_rows_without_a_project_use_the_global_retention(store: Corral) -> None:
    """Settings that have no effect for a project are rejected."""
    for name, definition in DEFINITIONS.items():
        if name.endswith(".retention_ms") and definition.scopes == ("global",):
            with pytest.raises(Invalid, match="its scopes are"):
                store.settings.set(name, 30 * DAY, scope="project:prj_x")


def test_prune_command_lists_projects_with_own_retention(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cli = Cli(capsys, f"sqlite:///{tmp_path}/corral.db")
    project = cli.json("project", "register", str(tmp_path))["id"]
    cli("setting", "set", "runs.retention_ms", "7d", "--project", project)
    results = cli.json("db", "prune", "--dry-run")
    assert [result["project_id"] for result in results if result["table"] == "runs"] == [
        None,
        project,
    ]
    assert project in cli("db", "prune", "--dry-run").out


def test_concurrent_prunes_count_each_row_once(store: Corral, clock: ManualClock) -> None:
    clock.advance(4_000 * DAY)
    tables = ("runs", "notes", "groups", "tasks", "races", "letters")
    with store.transaction() as tx:
        for table in tables:
            for _ in range(30):
                insert_ended_row(tx, table, None, DAY)
        insert_ended_row(tx, "letters", None, clock.now())
    expected = prune_counts(store, dry_run=True)
    counts: list[Counter[tuple[str, str | None]]] = []
    start = threading.Barrier(3)

    def prune() -> None:
        start.wait()
        counts.append(prune_counts(store, dry_run=False))

    threads = [threading.Thread(target=prune) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counts) == 3, "no prune failed"
    totals = sum(counts, Counter())
    assert {table: totals[table, None] for table in tables} == dict.fromkeys(tables, 30)
    assert {table: expected[table, None] for table in tables} == dict.fromkeys(tables, 30)
