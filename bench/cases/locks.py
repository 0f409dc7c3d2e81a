"""Locks: acquire and release, by hand and by Corral; the hook as a whole process."""

import compileall
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import apsw

import corral
from bench.harness import Bar, Bench, Rates, Rival, Row
from bench.opponents import ACTOR, now_ms, open_store
from corral.api import Corral

TITLE = "Locks"
ABOUT = """
    Acquire and release a lock on one of many paths, while other agents hold a hundred others.
    By hand: APSW with prepared statements on Corral's tables, with the same rows and events and
    a search for overlapping locks, without resolving paths and names, wait queue or fair write
    lock. The hook is `corral hook claude pre-tool-use`, refusing an edit and allowing one, as a
    whole process over `python -c pass`.
"""
CORRAL = str(Path(sys.executable).parent / "corral")
OTHERS = 100
TTL_MS = 300_000

ACQUIRE = """
    INSERT INTO locks (project_id, path, path_prefix, mode, owner, ttl_ms, lease_until, notify,
        created_at, held_at, state)
    VALUES (:project, :path, :path || '/', 'exclusive', :owner, 300000, :until, 0, :now, :now,
        'held')
    RETURNING seq, state, project_id, path, mode, owner, lease_until
"""
OVERLAPPING = """
    SELECT seq, path, mode, owner, lease_until FROM locks
    WHERE project_id = :project AND ended_at IS NULL AND lease_until > :now
      AND path_prefix IN ('', 'src/', :path || '/') AND owner <> :owner
    UNION ALL
    SELECT seq, path, mode, owner, lease_until FROM locks
    WHERE project_id = :project AND ended_at IS NULL AND lease_until > :now
      AND path_prefix > :path || '/' AND path_prefix < :path || '0' AND owner <> :owner
"""
WAITING = "SELECT 1 FROM locks WHERE project_id = :project AND state = 'waiting' LIMIT 1"
RELEASE = """
    UPDATE locks SET state = 'released', ended_at = :now, ended_by = :owner
    WHERE seq = :seq AND state = 'held' AND lease_until > :now RETURNING seq
"""
INSERT_EVENT = """
    INSERT INTO events (at, actor, kind, verb, subject, project_id, data)
    VALUES (:now, :actor, 'lock', :verb, :subject, :project, :data)
"""


def measure(bench: Bench) -> list[Row]:
    count = bench.pick(300, 200)
    store, project = _prepare_store(bench)
    execute, other_project = _by_hand(bench)
    result = bench.compare(
        Rival("by hand", partial(_acquire_and_release_by_hand, execute, other_project, count)),
        [Rival("Corral", partial(_acquire_and_release, store, project, count))],
        rounds=bench.pick(21, 5),
    )
    store.close()
    return [
        Row("acquire + release", result.speed_of("Corral", "acquire + release"), Bar(">=", 0.5)),
        *_hooks(bench),
    ]


def _prepare_store(bench: Bench, url: str | None = None) -> tuple[Corral, str]:
    store = open_store(url or f"sqlite:///{bench.new_file()}")
    folder = bench.folder / "project"
    (folder / "src").mkdir(parents=True, exist_ok=True)
    project = store.projects.register(folder).id
    for number in range(OTHERS):
        store.locks.acquire(
            project, f"src/held-{number}.py", f"other-{number % 10}", ttl_ms=3_600_000
        )
    return store, project


def _acquire_and_release(store: Corral, project: str, count: int) -> Rates:
    start = time.perf_counter()
    for number in range(count):
        store.locks.release(store.locks.acquire(project, f"src/{number}.py", "ada"))
    return {"acquire + release": count / (time.perf_counter() - start)}


def _by_hand(bench: Bench) -> tuple[Any, str]:
    path = bench.new_file()
    store, project = _prepare_store(bench, f"sqlite:///{path}")
    store.close()
    connection = apsw.Connection(str(path), statementcachesize=512)
    connection.set_busy_timeout(10_000)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    for pragma in ("synchronous = NORMAL", "temp_store = MEMORY", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")
    return connection.execute, project


def _acquire_and_release_by_hand(run: Any, project: str, count: int) -> Rates:
    start = time.perf_counter()
    for number in range(count):
        now = now_ms()
        values = {
            "project": project,
            "path": f"src/{number}.py",
            "owner": "agent:ada",
            "now": now,
            "until": now + TTL_MS,
            "actor": ACTOR,
        }
        run("BEGIN IMMEDIATE")
        assert not run(OVERLAPPING, values).fetchall()
        seq = run(ACQUIRE, values).fetchall()[0][0]
        event = {"subject": f"lck_{seq}", "data": json.dumps({"path": values["path"]})}
        run(INSERT_EVENT, values | event | {"verb": "acquire"})
        run("COMMIT")
        values |= {"now": now_ms(), "seq": seq}
        run("BEGIN IMMEDIATE")
        assert run(RELEASE, values).fetchall()
        run(INSERT_EVENT, values | event | {"verb": "release"})
        assert not run(WAITING, values).fetchall()
        run("COMMIT")
    return {"acquire + release": count / (time.perf_counter() - start)}


def _hooks(bench: Bench) -> list[Row]:
    # As pip does on installation; a run that cannot write bytecode would compile at every start.
    compileall.compile_dir(str(Path(corral.__file__).parent), quiet=1)
    url = f"sqlite:///{bench.new_file()}"
    _prepare_store(bench, url)[0].close()
    environment = os.environ | {
        "CORRAL_STORE": url,
        "CORRAL_HOME": str(bench.folder),
        "CORRAL_AGENT": "ada",
    }
    cases = {
        "corral hook, refusing an edit": ("src/held-7.py", 2),
        "corral hook, allowing an edit": ("src/free.py", 0),
    }
    result = bench.compare(
        Rival(
            "python -c pass", partial(_run_hook, [sys.executable, "-c", "pass"], environment, "", 0)
        ),
        [
            Rival(
                name,
                partial(
                    _run_hook,
                    [CORRAL, "hook", "claude", "pre-tool-use"],
                    environment,
                    json.dumps(
                        {
                            "tool_name": "Edit",
                            "tool_input": {"file_path": str(bench.folder / "project" / path)},
                        }
                    ),
                    code,
                ),
            )
            for name, (path, code) in cases.items()
        ],
        rounds=bench.pick(40, 12),
    )
    return [Row(name, result.speed_of_base_over(name, "run"), Bar("<=", 6)) for name in cases]


def _run_hook(command: list[str], environment: dict[str, str], payload: str, code: int) -> Rates:
    start = time.perf_counter()
    process = subprocess.run(
        command, env=environment, input=payload.encode(), stderr=subprocess.DEVNULL, check=False
    )
    elapsed = time.perf_counter() - start
    assert process.returncode == code, process
    return {"run": 1 / elapsed}
