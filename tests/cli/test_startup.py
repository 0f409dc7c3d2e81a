"""Modules that commands load at start-up: few, because agents call `corral` from hooks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.grouped_cases import Cases

pytestmark = pytest.mark.slow

PRINT_MODULES = """
import sys
sys.argv = ["corral", *{arguments!r}]
from corral.__main__ import main
try:
    main()
except SystemExit:
    pass
print("\\n".join(sys.modules), file=sys.stderr)
"""

HEAVY = {
    "asyncio",
    "dataclasses",
    "hashlib",
    "http.client",
    "jinja2",
    "json",
    "keyring",
    "mcp",
    "opentelemetry",
    "psycopg",
    "pydantic",
    "pyte",
    "rich",
    "socket",
    "sqlite3",
    "starlette",
    "subprocess",
    "uvicorn",
    "zoneinfo",
    "zstandard",
}


def environment(home: Path) -> dict[str, str]:
    """Return a minimal environment with the code under test."""
    inherited = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    return inherited | {"CORRAL_HOME": str(home), "USER": "tester"}


def modules_after(home: Path, *arguments: str) -> set[str]:
    process = subprocess.run(
        [sys.executable, "-c", PRINT_MODULES.format(arguments=list(arguments))],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(process.stderr.split())


def test_version_loads_almost_nothing(tmp_path: Path) -> None:
    loaded = modules_after(tmp_path, "--version")
    assert {name for name in loaded if name.startswith("corral")} == {"corral", "corral.__main__"}
    assert not loaded & (HEAVY | {"click", "msgspec", "apsw", "typing", "re"})


EVERYDAY = [
    ["mail", "list", "--json"],
    ["mail", "put", "agent:ada", "x", "--json"],
    ["mail", "claim", "agent:ada", "--owner", "x", "--json"],
    ["project", "list", "--json"],
    ["events", "--json"],
    ["setting", "get", "mail.retention_ms", "--json"],
    ["token", "list", "--json"],
    ["--json"],
    ["alert", "list", "--json"],
    ["budget", "list", "--json"],
    ["charge", "total", "--json"],
    ["stats", "--json"],
]


def test_common_commands_load_nothing_heavy(tmp_path: Path) -> None:
    modules_after(tmp_path, "db", "check", "--json")  # creates the store
    with Cases() as cases:
        for arguments in EVERYDAY:
            with cases.case(" ".join(arguments)):
                assert not modules_after(tmp_path, *arguments) & HEAVY


@pytest.mark.parametrize(
    ("command", "own"), [("mail list", {"mail", "settings"}), ("status", {"nodes"})]
)
def test_command_loads_only_its_own_concept(tmp_path: Path, command: str, own: set[str]) -> None:
    modules_after(tmp_path, "db", "check", "--json")
    loaded = modules_after(tmp_path, *command.split(), "--json")
    # Every command asks for the run of its process: one statement, no concept.
    lookup = {
        "corral.domain.runs",
        "corral.domain.runs.process_sql",
        "corral.domain.runs.processes",
    }
    concepts = {name.split(".")[2] for name in loaded - lookup if name.startswith("corral.domain.")}
    assert concepts == own


def test_output_records_load_no_compression_or_emulator(
    tmp_path: Path,
) -> None:
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, corral; store = corral.open(); outputs = store.internal.outputs\n"
            "outputs.begin('run_1', host='h', folder='/x')\n"
            "outputs.record_progress('run_1', 7); store.close()\n"
            "print('\\n'.join(sys.modules))",
        ],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert not {*result.stdout.split()} & (HEAVY - {"hashlib"})  # a new store needs this module
    assert "corral.adapters.output.secret_patterns" not in result.stdout


def test_detached_run_leaves_the_store_to_its_supervisor(tmp_path: Path) -> None:
    modules_after(tmp_path, "db", "check", "--json")
    loaded = modules_after(tmp_path, "run", "-d", "--name", "short", "--", "true")
    assert not loaded & (HEAVY | {"apsw", "pathlib", "shutil"})
    assert not [name for name in loaded if name.startswith(("corral.domain", "corral.api"))]
    modules_after(tmp_path, "wait", "short")


def test_waiting_supervisor_has_loaded_only_what_a_run_needs(
    tmp_path: Path,
) -> None:
    reader, writer = os.pipe()
    os.close(writer)
    result = subprocess.run(
        [
            sys.executable,
            "-P",
            "-X",
            "importtime",
            "-m",
            "corral.supervisor",
            str(reader),
            "-1",
            "-1",
        ],
        env=environment(tmp_path),
        pass_fds=[reader],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    os.close(reader)
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    concepts = {name.split(".")[2] for name in loaded if name.startswith("corral.domain.")}
    assert concepts == {"runs", "outputs", "charges", "nodes", "projects", "settings"}
    assert {"apsw", "corral.services.runs.request", "corral.db.sqlite"} <= loaded
    assert not loaded & (HEAVY | {"inspect", "random", "shutil", "struct"})
    assert "corral.adapters.output.secret_patterns" not in loaded


def test_mcp_tools_are_listed_before_a_store_is_loaded(tmp_path: Path) -> None:
    loaded = modules_after(tmp_path, "mcp")  # no tool is called
    assert "corral.mcp.protocol" in loaded
    assert not loaded & (HEAVY | {"apsw", "click", "inspect", "typing_extensions"})
    assert not [name for name in loaded if name.startswith(("corral.api", "corral.db"))]


def test_help_loads_no_command(tmp_path: Path) -> None:
    loaded = modules_after(tmp_path, "--help")
    assert not [name for name in loaded if name.startswith("corral.cli.commands.")]
