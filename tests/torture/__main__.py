"""Kill supervisors, guards and agents of many runs at random, and verify what the store records.

    python -m tests.torture --count 500 --seed 1 [--postgres | --url URL]
    python -m tests.torture --kills 10000 --into FILE [--postgres]

Several recovery processes run all the time and are killed too. The agents record their progress and
how they intend to end; unrelated processes, some with reused pids, record every signal that they
get. At the end, every run must be over in a state that the agent's own record allows, with complete
output, with no invented exit code, and with no process left.
"""

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import corral
from corral.adapters.processes import process
from corral.adapters.processes.process import ProcessIdentity
from corral.adapters.supervisor_process import StartingSupervisor, SupervisorLost
from corral.api import Corral
from corral.domain.runs.model import Run
from corral.kernel.errors import CorralError
from tests.torture import ledger
from tests.torture.expected_runs import AGENT, Plan, judge
from tests.torture.ledger import format_counts
from tests.torture.recovery_processes import RecoveryProcesses, reap_forever
from tests.torture.unrelated_processes import UnrelatedProcesses
from tests.torture.workspace import folder_for, store_for

MAX_RUNS = 6
MAX_WAIT = 180.0
ROLES = ("supervisor", "guard", "agent")
ENDS = ("exit0", "exit0", "exit3", "exit77", "signal11", "signal15", "signal9")


class Torture:
    def __init__(self, folder: Path, count: int, seed: int, max_runs: int, url: str) -> None:
        self.folder = folder
        self.count = count
        self.max_runs = max_runs
        self.random = random.Random(seed)
        self.url = url
        self.plans: dict[str, Plan] = {}
        self.kills: Counter[str] = Counter()
        self.killed: set[int] = set()
        self.bystanders = UnrelatedProcesses(folder / "signals")
        self.recoverers: RecoveryProcesses | None = None
        self.starting: dict[int, Plan] = {}
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        (folder / "agent.py").write_text(AGENT)
        (folder / "work").mkdir()

    # -- runs ------------------------------------------------------------------------------------

    def plan(self, number: int) -> Plan:
        kind = self.random.choice(("pipe", "pipe", "pty", "stream"))
        return Plan(
            kind=kind,
            record=self.folder / "work" / f"{number}.record",
            lines=self.random.randrange(20, 60 if kind == "stream" else 400),
            end=self.random.choice(ENDS if kind != "stream" else ("exit0", "exit3")),
            max_restarts=1 if kind != "stream" and self.random.random() < 0.2 else 0,
        )

    def request_run(self, store: Corral, plan: Plan, pause: float) -> Run:
        work = str(self.folder / "work")
        if plan.kind == "stream":
            steps = [f"say {n}; sleep {pause * 4:.3f}" for n in range(1, plan.lines + 1)]
            last = "; crash 3" if plan.end == "exit3" else ""
            first = f"write {plan.record.with_suffix('.begin')} begin 1"
            prompt = "\n".join([first, *steps, f"write {plan.record} end 1 {plan.end}{last}"])
            return store.runs.start(
                prompt=prompt, agent="scripted", project=work, terminal=False, grace_period_ms=500
            )
        command = [sys.executable, "-S", "-E", str(self.folder / "agent.py"), str(plan.record)]
        return store.runs.start(
            command=[*command, str(plan.lines), f"{pause:.4f}", plan.end],
            project=work,
            terminal=plan.kind == "pty",
            max_restarts=plan.max_restarts,
            grace_period_ms=500,
        )

    def start(self, store: Corral, plan: Plan, pause: float) -> None:
        """Request a run and start its supervisor, which may be killed while it starts."""
        run = self.request_run(store, plan, pause)
        plan.id = run.id
        with self.lock:
            self.plans[run.id] = plan
        supervisor = StartingSupervisor()
        with self.lock:
            self.starting[supervisor.pid] = plan
        try:
            with suppress(SupervisorLost):
                supervisor.start(store=store.address, run=run.id)
        finally:
            with self.lock:
                self.starting.pop(supervisor.pid)

    def start_runs(self, number: int) -> None:
        """Start runs while there are too few; one of several such threads."""
        with corral.open(self.url, actor="torture") as store:
            while not self.stopping.is_set():
                if len(store.runs.list(live=True, limit=100).items) >= self.max_runs:
                    time.sleep(0.02)
                    continue
                with self.lock:
                    number += 1_000
                    plan, pause = self.plan(number), self.random.uniform(0.0005, 0.006)
                self.start(store, plan, pause)

    # -- kills -----------------------------------------------------------------------------------

    def torture(self, store: Corral) -> None:
        last_print = time.monotonic()
        while sum(self.kills.values()) < self.count:
            time.sleep(self.random.choice((0, 0.001, 0.01, 0.05, 0.15)))
            chance = self.random.random()
            if chance < 0.3:
                self.kill_starting() if chance < 0.15 else self.kill_recoverer()
                continue
            live = [run for run in store.runs.list(live=True, limit=100).items if run.pid]
            if not live:
                continue
            run = self.random.choice(live)
            if self.random.random() < 0.06:
                with suppress(CorralError):
                    store.runs.stop(run.id, reason="stopped by the test", grace_period_ms=300)
                    self.plans[run.id].stopped = True
            roles = self.random.sample(ROLES, self.random.choice((1, 1, 1, 2, 3)))
            identities = {role: self.find(run, role) for role in roles}
            for role in roles:
                self.kill(self.plans[run.id], role, identities[role])
            if time.monotonic() - last_print > 15:
                last_print = time.monotonic()
                print(f"  {sum(self.kills.values())} kills, {len(self.plans)} runs", flush=True)

    def kill_starting(self) -> None:
        with self.lock:
            starting = list(self.starting.items())
        if not starting:
            return
        pid, plan = self.random.choice(starting)
        time.sleep(self.random.uniform(0, 0.3))
        identity = process.identify(pid)
        self.kill(plan, "supervisor", identity)

    def kill_recoverer(self) -> None:
        """Kill a recovery process at work."""
        assert self.recoverers is not None
        time.sleep(self.random.choice((0, 0.002, 0.01, 0.03)))
        busy = self.recoverers.busy()
        if busy:
            identity = self.random.choice(busy)
            if process.send_signal(identity, signal.SIGKILL):
                self.killed.add(identity.pid)
                self.kills["recoverer"] += 1
            self.recoverers.replace(identity)

    @staticmethod
    def find(run: Run, role: str) -> ProcessIdentity | None:
        assert run.host is not None
        assert run.boot_id is not None
        if role == "guard":
            with suppress(OSError):
                agent = process.read_stat(run.pid or 0)
                if agent is None or agent.start_token != run.start_token or agent.parent <= 1:
                    return None
                command = process.read_command_line(agent.parent)
                return process.identify(agent.parent) if "corral.supervisor" in command else None
            return None
        pid, token = (run.pid, run.start_token)
        if role == "supervisor":
            pid, token = (run.supervisor_pid, run.supervisor_token)
        return (
            None
            if pid is None or token is None
            else ProcessIdentity(run.host, run.boot_id, pid, token)
        )

    def kill(self, plan: Plan, role: str, identity: ProcessIdentity | None) -> None:
        if identity is None or not process.send_signal(identity, signal.SIGKILL):
            return
        self.killed.add(identity.pid)
        plan.killed[role] += 1
        self.kills[role] += 1
        if self.random.random() < 0.4:
            self.bystanders.take_pid_of(identity)


# -- processes -----------------------------------------------------------------------------------


def _list_processes(mark: str) -> list[int]:
    pids = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError):
                variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                state = process.read_stat(int(name))
                if mark.encode() in variables and state is not None and state.state not in "ZX":
                    pids.append(int(name))
    return pids


def run(wanted: argparse.Namespace, folder: Path, url: str | None) -> int:
    count, seed = wanted.count, wanted.seed
    os.environ["CORRAL_HOME"] = str(folder / "home")
    os.environ["CORRAL_AGENT_HOME"] = str(folder / "conversations")
    for name in ("CORRAL_RUN", "CORRAL_SESSION", "CORRAL_STORE"):
        os.environ.pop(name, None)
    url = url or f"sqlite:///{folder}/corral.db"
    engine = "postgres" if url.startswith("postgres") else "sqlite"
    print(f"torture on {engine}, {count} kills, seed {seed}", flush=True)
    torture = Torture(folder, count, seed, wanted.max_runs, url)
    corral.open(url).close()
    reap_forever()
    for env in ({}, {"CORRAL_RUN": "run_0"}, {"XCORRAL_RUN": "run_"}):
        torture.bystanders.add(env)
    recoverers = torture.recoverers = RecoveryProcesses(url, seed, folder)
    starters = [
        threading.Thread(target=torture.start_runs, args=(n,), daemon=True) for n in range(3)
    ]
    start = time.monotonic()
    try:
        with corral.open(url, actor="torture") as store:
            for starter in starters:
                starter.start()
            torture.torture(store)
            torture.stopping.set()
            for starter in starters:
                starter.join()
            deadline = time.monotonic() + MAX_WAIT
            while store.runs.list(live=True).items and time.monotonic() < deadline:
                time.sleep(0.1)
            recoverers.end()
            # A recovery process that briefly supervises a run may be killed as its supervisor.
            crashed = [pid for pid in recoverers.died if pid not in torture.killed]
            store.runs.recover()
            seconds = time.monotonic() - start
            wrong = report(torture, store, seconds, crashed, folder)
            batch = ledger.Batch(engine, "runs", seed, dict(torture.kills), seconds, wrong)
            batch.runs, batch.command = len(torture.plans), " ".join(sys.argv[1:])
            ledger.append_batch(wanted.into, batch)
            return 1 if wrong else 0
    finally:
        recoverers.end()
        torture.bystanders.end()
        for pid in _list_processes(f"CORRAL_HOME={folder / 'home'}"):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def report(
    torture: Torture, store: Corral, seconds: float, crashed: list[int], folder: Path
) -> int:
    """Print what was done and found; return the number of violations."""
    mark = f"CORRAL_HOME={folder / 'home'}"
    deadline = time.monotonic() + 30
    while (remaining := _list_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    wrong = [text for plan in torture.plans.values() for text in judge(store, plan)]
    signalled = torture.bystanders.judge()
    states: Counter[tuple[str, str]] = Counter()
    outcomes: Counter[str] = Counter()
    for plan in torture.plans.values():
        run = store.runs.get(plan.id)
        states[plan.kind, run.state] += 1
        outcome = "exit code" if run.exit_code is not None else "signal"
        outcomes[outcome if run.exit_code is not None or run.signal is not None else "unknown"] += 1
    _print_table(
        {
            "kills": f"{sum(torture.kills.values())} ({format_counts(torture.kills)})",
            "runs": f"{len(torture.plans)} in {seconds:.0f} s",
            **{f"  {kind} {state}": str(n) for (kind, state), n in sorted(states.items())},
            "known ends": format_counts(outcomes),
            "bystanders": str(len(torture.bystanders)),
            "  with a pid used before": str(torture.bystanders.reused),
            "wrong ends or outputs": str(len(wrong)),
            "unrelated processes signalled": str(len(signalled)),
            "still running": str(len(remaining)),
            "recoverers that died": str(len(crashed)),
        }
    )
    for pid in remaining:
        wrong.append(f"left: {pid} {' '.join(process.read_command_line(pid))[:100]}")
    for text in (*wrong, *signalled):
        print(f"  ! {text}")
    errors: Any = (folder / "recoverers").read_text().strip()
    if errors:
        print(f"  recoverers printed: {errors[-1_500:]}")
    for error in sorted((folder / "home" / "runs").glob("*/supervisor.error"))[:5]:
        print(f"  {error.parent.name}: {error.read_text().strip().splitlines()[-1]}")
    return len(wrong) + len(signalled) + len(crashed)


def _print_table(rows: dict[str, str]) -> None:
    width = max(map(len, rows))
    print("\n".join(f"{name.ljust(width)}  {value}" for name, value in rows.items()), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=500, help="number of kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-runs", type=int, default=MAX_RUNS, help="number of concurrent runs")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    parser.add_argument("--postgres", action="store_true", help="use a private PostgreSQL server")
    parser.add_argument("--url", help="use this empty PostgreSQL database")
    parser.add_argument("--chat", action="store_true", help="chat stress test; see its --help")
    parser.add_argument("--chaos", action="store_true", help="all faults at once; see its --help")
    parser.add_argument(
        "--handles", action="store_true", help="many SQLite handles; see its --help"
    )
    parser.add_argument("--moves", action="store_true", help="db move under load; see its --help")
    parser.add_argument("--runs", action="store_true", help="many runs at once; see its --help")
    parser.add_argument("--kills", type=int, help="run batches of --count until this many kills")
    parser.add_argument(
        "--into", metavar="FILE", help="append a line per batch; --kills continues it"
    )
    parser.add_argument("--total", metavar="FILE", help="only print the totals of such a file")
    if "--chat" in sys.argv:
        from tests.torture import chat_stress

        return chat_stress.main([argument for argument in sys.argv[1:] if argument != "--chat"])
    if "--chaos" in sys.argv:
        from tests.torture.chaos import main as chaos

        return chaos.main([argument for argument in sys.argv[1:] if argument != "--chaos"])
    if "--handles" in sys.argv:
        from tests.torture import sqlite_handles

        return sqlite_handles.main(
            [argument for argument in sys.argv[1:] if argument != "--handles"]
        )
    if "--runs" in sys.argv:
        from tests.torture import many_runs

        return many_runs.main([argument for argument in sys.argv[1:] if argument != "--runs"])
    if "--moves" in sys.argv:
        from tests.torture import store_moves

        return store_moves.main([argument for argument in sys.argv[1:] if argument != "--moves"])
    wanted = parser.parse_args()
    if wanted.total:
        print(ledger.table(ledger.read(wanted.total)))
        return 0
    if wanted.kills:
        if wanted.into is None:
            parser.error("--kills continues a file; name it with --into FILE")
        options = ["--postgres"] if wanted.postgres else []
        return ledger.run_batches(wanted.kills, wanted.count, wanted.seed, wanted.into, options)
    with (
        folder_for("torture", keep=wanted.keep) as folder,
        store_for(wanted.url, postgres=wanted.postgres) as url,
    ):
        return run(wanted, folder, url)


if __name__ == "__main__":
    sys.exit(main())
