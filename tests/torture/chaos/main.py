"""Two nodes with real daemons, supervisors, agents and workers on one store, under all faults.

Processes are killed or stopped for longer than their leases. Nodes lose power, run out of disk,
have their clock moved or their network cut. The server restarts, and the daemon is stopped.

    python -m tests.torture --chaos --minutes 3 --seed 1 [--postgres | --url URL]

The faults are determined by the seed. At the end all faults are repaired, and the store's events
are compared with the records of workers and agents (`checker.py`).
"""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

import msgspec

from tests.torture import ledger
from tests.torture.chaos import faults
from tests.torture.chaos.checker import judge
from tests.torture.chaos.runner import Chaos
from tests.torture.ledger import Batch, format_counts
from tests.torture.workspace import folder_for


def run(wanted: argparse.Namespace, folder: Path) -> int:
    os.environ["CORRAL_HOME"] = str(folder / "home")
    os.environ["CORRAL_HOST"] = "judge"
    for name in ("CORRAL_RUN", "CORRAL_SESSION", "CORRAL_AGENT", "CORRAL_STORE"):
        os.environ.pop(name, None)
    seconds = wanted.hours * 3_600 or wanted.minutes * 60
    engine = "postgres" if wanted.postgres or wanted.url else "sqlite"
    print(f"chaos on {engine}, seed {wanted.seed}, {seconds:.0f} s", flush=True)
    chaos = Chaos(folder, wanted.seed, seconds, wanted.url, wanted.postgres)
    try:
        chaos.begin()
        chaos.inject_faults()
        recovery_seconds = chaos.recover()
        history = chaos.history(chaos.end())
    finally:
        chaos.close()
    if wanted.keep:
        values = {name: getattr(history, name) for name in history.__struct_fields__[1:]}
        (folder / "history.json").write_bytes(msgspec.json.encode(values))
    wrong = judge(history) + _crashes(chaos.out)
    batch = Batch(
        engine, "chaos", wanted.seed, dict(chaos.killed), seconds + recovery_seconds, len(wrong)
    )
    batch.runs, batch.command = len(history.runs), " ".join(sys.argv[1:])
    ledger.append_batch(wanted.into, batch)
    notes = Counter(note.action for note in history.notes)
    rows = {
        "chaos": f"{engine}, seed {wanted.seed}, {seconds:.0f} s, "
        f"recovered in {recovery_seconds:.0f} s",
        "faults": f"{sum(chaos.counts.values())} ({format_counts(chaos.counts)})",
        "kills": f"{sum(chaos.killed.values())} ({format_counts(chaos.killed)})",
        "not possible": "; ".join(chaos.impossible) or "nothing",
        "events": str(len(history.events)),
        "accepted": format_counts(notes),
        "attempts of runs": str(len(history.runs)),
        "messages answered": f"{len(history.shown)} of {len(history.said)}",
        "bystanders": f"{len(chaos.bystanders)}, {chaos.bystanders.reused} with a reused pid",
        "wrong": str(len(wrong)),
    }
    width = max(map(len, rows))
    print("\n".join(f"{name.ljust(width)}  {value}" for name, value in rows.items()))
    for text in wrong[:40]:
        print(f"  ! {text}")
    return 1 if wrong else 0


def _crashes(folder: Path) -> list[str]:
    """Return workers that died of something other than an injected fault."""
    return [
        f"{log.name}: {log.read_text().strip().splitlines()[-1]}"
        for log in sorted(folder.glob("*.log"))
        if "Traceback" in log.read_text()
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture --chaos")
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--hours", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres", action="store_true", help="use a private PostgreSQL server")
    parser.add_argument("--url", help="use this empty PostgreSQL database")
    parser.add_argument("--into", metavar="FILE", help="append a line to this file")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    parser.add_argument("--plan", action="store_true", help="only print the planned faults")
    wanted = parser.parse_args(arguments)
    if wanted.plan:
        seconds = wanted.hours * 3_600 or wanted.minutes * 60
        for fault in faults.plan(wanted.seed, seconds, set(faults.KINDS)):
            print(fault)
        return 0
    with folder_for("chaos", keep=wanted.keep) as folder:
        return run(wanted, folder)
