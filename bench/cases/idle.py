"""The idle daemon: its share of a core and its memory."""

from pathlib import Path

from tests.support.daemon_nodes import Machine, cpu_of, memory_of

from bench.cases.history import ENGINES, Engine
from bench.harness import Bar, Bench, Row, Spread

TITLE = "An idle daemon"
ABOUT = """
    `corral up` on a store without activity: its share of one core over half a minute, three
    times, after its start; and its resident memory at the end.
"""
SETTLE = 5.0
MEGABYTE = 1_000_000


def measure(bench: Bench) -> list[Row]:
    return [row for engine in ENGINES for row in _on(bench, engine)]


def _on(bench: Bench, engine: Engine) -> list[Row]:
    file: Path = bench.new_file()
    url = f"sqlite:///{file}" if engine == "sqlite" else bench.server.new_database()
    machine = Machine(file.parent / "machine", url, "bench")
    seconds = bench.pick(30.0, 10.0)
    try:
        machine.up()
        cpu_of(machine.pid, SETTLE)
        bench.progress(f"an idle daemon on {engine}")
        shares = [100 * cpu_of(machine.pid, seconds) for _ in range(3)]
        megabytes = memory_of(machine.pid) / MEGABYTE
    finally:
        machine.kill_processes()
    name = ENGINES[engine]
    return [
        Row(f"{name}, percent of a core", Spread.of(shares), Bar("<", 1), ""),
        Row(f"{name}, megabytes", Spread.of([megabytes]), Bar("<", 120), ""),
    ]
