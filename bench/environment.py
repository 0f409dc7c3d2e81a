"""The facts that the figures depend on, without identifying the machine."""

import os
import platform
import sqlite3
from importlib.metadata import version

import apsw
import psycopg

from bench.harness import Bench
from bench.opponents.node import versions

PEERS = (
    *("huey", "litequeue", "persist-queue", "dbos", "procrastinate", "pgmq", "openai-agents"),
    *("langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres"),
)
DRIVERS = ("apsw", "psycopg", "msgspec")


def facts(bench: Bench) -> dict[str, str]:
    with psycopg.connect(bench.server.url("postgres")) as connection:
        postgres = connection.info.parameter_status("server_version") or "unknown"
    return {
        "system": f"{platform.system()} on {platform.machine()}, {os.cpu_count()} CPUs",
        "Python": platform.python_version(),
        "SQLite of Corral and of the statements by hand": apsw.sqlite_lib_version(),
        "SQLite of the peers (the standard library's)": sqlite3.sqlite_version,
        "PostgreSQL": postgres,
        **{name: version(name) for name in (*DRIVERS, *PEERS)},
        **versions(),
    }
