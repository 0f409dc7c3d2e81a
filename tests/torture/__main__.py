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
from corral.adapters import process
from corral.adapters.process import ProcessIdentity
from corral.adapters.supervisor_process import StartingSupervisor, SupervisorLost
from corral.api import Corral
from corral.domain.runs.model import Run
from corral.kernel.errors import CorralError
from tests.torture import ledger
from tests.torture.expected_runs import AGENT, Plan, judge
from tests.torture.ledger import counted
from tests.torture.recovery_processes import RecoveryProcesses, reap_for_ever
from tests.torture.unrelated_processes import UnrelatedProcesses
from tests.torture.workspace import folder_for, store_for

AT_ONCE = 6
LONGEST = 180.0
ROLES = ("supervisor", "guard", "agent")
ENDS = ("exit0", "exit0", "exit3", "exit77", "signal11", "signal15", "signal9")


class Torture:
    def __init__(self, folder: Path, count: int, seed: int, at_once: int, url: str) -> None:
        self.folder = folder
        self.count = count
        self.at_once = at_once
        self.random = random.Random(seed)
        self.url = url
        self.plans: dict[str, Plan] = {}
        self.kills: Counter[str] = Counter()
        self.killed: set[int] = set()
        self.bystanders = UnrelatedProcesses(folder / "signals")
        self.recoverers: RecoveryProcesses | None = None
        self.starting: dict[int, Plan] = {}
        self.lock = threading.Lock()
        self.enough = threading.Event()
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

    def ask(self, store: Corral, plan: Plan, pause: float) -> Run:
        work = str(self.folder / "work")
        if plan.kind == "stream":
            says = [f"say {n}; sleep {pause * 4:.3f}" for n in range(1, plan.lines + 1)]
            last = "; crash 3" if plan.end == "exit3" else ""
            first = f"write {plan.record.with_suffix('.begin')} begin 1"
            prompt = "\n".join([first, *says, f"write {plan.record} end 1 {plan.end}{last}"])
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
        run = self.ask(store, plan, pause)
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

    def feed(self, number: int) -> None:
        """Start runs while there are too few; one of several such threads."""
        with corral.open(self.url, actor="torture") as store:
            while not self.enough.is_set():
                if len(store.runs.list(live=True, limit=100).items) >= self.at_once:
                    time.sleep(0.02)
                    continue
                with self.lock:
                    number += 1_000
                    plan, pause = self.plan(number), self.random.uniform(0.0005, 0.006)
                self.start(store, plan, pause)

    # -- killing ---------------------------------------------------------------------------------

    def torture(self, store: Corral) -> None:
        result = time.monotonic()
        while sum(self.kills.values()) < self.count:
            time.sleep(self.random.choice((0, 0.001, 0.01, 0.05, 0.15)))
            luck = self.random.random()
            if luck < 0.3:
                self.kill_starting() if luck < 0.15 else self.kill_recoverer()
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
            values = {role: self.find(run, role) for role in roles}
            for role in roles:
                self.kill(self.plans[run.id], role, values[role])
            if time.monotonic() - result > 15:
                result = time.monotonic()
                print(f"  {sum(self.kills.values())} kills, {len(self.plans)} runs", flush=True)

    def kill_starting(self) -> None:
        with self.lock:
            result = list(self.starting.items())
        if not result:
            return
        pid, plan = self.random.choice(result)
        time.sleep(self.random.uniform(0, 0.3))
        who = process.identify(pid)
        self.kill(plan, "supervisor", who)

    def kill_recoverer(self) -> None:
        """Kill a recovery process at work."""
        assert self.recoverers is not None
        time.sleep(self.random.choice((0, 0.002, 0.01, 0.03)))
        result = self.recoverers.busy()
        if result:
            who = self.random.choice(result)
            if process.send_signal(who, signal.SIGKILL):
                self.killed.add(who.pid)
                self.kills["recoverer"] += 1
            self.recoverers.replace(who)

    @staticmethod
    def find(run: Run, role: str) -> ProcessIdentity | None:
        assert run.host is not None
        assert run.boot_id is not None
        if role == "guard":
            with suppress(OSError):
                agent = process.read_stat(run.pid or 0)
                if agent is None or agent.start_token != run.start_token or agent.parent <= 1:
                    return None
                words = process.read_command_line(agent.parent)
                return process.identify(agent.parent) if "corral.supervisor" in words else None
            return None
        pid, token = (run.pid, run.start_token)
        if role == "supervisor":
            pid, token = (run.supervisor_pid, run.supervisor_token)
        return (
            None
            if pid is None or token is None
            else ProcessIdentity(run.host, run.boot_id, pid, token)
        )

    def kill(self, plan: Plan, role: str, who: ProcessIdentity | None) -> None:
        if who is None or not process.send_signal(who, signal.SIGKILL):
            return
        self.killed.add(who.pid)
        plan.killed[role] += 1
        self.kills[role] += 1
        if self.random.random() < 0.4:
            self.bystanders.take_pid_of(who)


# -- processes -----------------------------------------------------------------------------------


def _left(mark: str) -> list[int]:
    results = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError):
                words = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                state = process.read_stat(int(name))
                if mark.encode() in words and state is not None and state.state not in "ZX":
                    results.append(int(name))
    return results


def run(wanted: argparse.Namespace, folder: Path, url: str | None) -> int:
    count, seed = wanted.count, wanted.seed
    os.environ["CORRAL_HOME"] = str(folder / "home")
    os.environ["CORRAL_AGENT_HOME"] = str(folder / "conversations")
    for name in ("CORRAL_RUN", "CORRAL_SESSION", "CORRAL_STORE"):
        os.environ.pop(name, None)
    url = url or f"sqlite:///{folder}/corral.db"
    engine = "postgres" if url.startswith("postgres") else "sqlite"
    print(f"torture on {engine}, {count} kills, seed {seed}", flush=True)
    torture = Torture(folder, count, seed, wanted.at_once, url)
    corral.open(url).close()
    reap_for_ever()
    for env in ({}, {"CORRAL_RUN": "run_0"}, {"XCORRAL_RUN": "run_"}):
        torture.bystanders.add(env)
    recoverers = torture.recoverers = RecoveryProcesses(url, seed, folder)
    feeders = [threading.Thread(target=torture.feed, args=(n,), daemon=True) for n in range(3)]
    began = time.monotonic()
    try:
        with corral.open(url, actor="torture") as store:
            for feeder in feeders:
                feeder.start()
            torture.torture(store)
            torture.enough.set()
            for feeder in feeders:
                feeder.join()
            deadline = time.monotonic() + LONGEST
            while store.runs.list(live=True).items and time.monotonic() < deadline:
                time.sleep(0.1)
            recoverers.end()
            # A recovery process that briefly supervises a run may be killed as its supervisor.
            tired = [pid for pid in recoverers.died if pid not in torture.killed]
            store.runs.recover()
            seconds = time.monotonic() - began
            wrong = report(torture, store, seconds, tired, folder)
            batch = ledger.Batch(engine, "runs", seed, dict(torture.kills), seconds, wrong)
            batch.runs, batch.command = len(torture.plans), " ".join(sys.argv[1:])
            ledger.note(wanted.into, batch)
            return 1 if wrong else 0
    finally:
        recoverers.end()
        torture.bystanders.end()
        for pid in _left(f"CORRAL_HOME={folder / 'home'}"):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def report(torture: Torture, store: Corral, seconds: float, tired: list[int], folder: Path) -> int:
    """Print what was done and found; return the number of violations."""
    mark = f"CORRAL_HOME={folder / 'home'}"
    deadline = time.monotonic() + 30
    while (left := _left(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    wrong = [text for plan in torture.plans.values() for text in judge(store, plan)]
    strangers = torture.bystanders.judge()
    states: Counter[tuple[str, str]] = Counter()
    known: Counter[str] = Counter()
    for plan in torture.plans.values():
        run = store.runs.get(plan.id)
        states[plan.kind, run.state] += 1
        how = "exit code" if run.exit_code is not None else "signal"
        known[how if run.exit_code is not None or run.signal is not None else "unknown"] += 1
    _table(
        {
            "kills": f"{sum(torture.kills.values())} ({counted(torture.kills)})",
            "runs": f"{len(torture.plans)} in {seconds:.0f} s",
            **{f"  {kind} {state}": str(n) for (kind, state), n in sorted(states.items())},
            "known ends": counted(known),
            "bystanders": str(len(torture.bystanders)),
            "  with a pid used before": str(torture.bystanders.reused),
            "wrong ends or outputs": str(len(wrong)),
            "strangers signalled": str(len(strangers)),
            "left running": str(len(left)),
            "recoverers that died": str(len(tired)),
        }
    )
    for pid in left:
        wrong.append(f"left: {pid} {' '.join(process.read_command_line(pid))[:100]}")
    for text in (*wrong, *strangers):
        print(f"  ! {text}")
    result: Any = (folder / "recoverers").read_text().strip()
    if result:
        print(f"  recoverers said: {result[-1_500:]}")
    for error in sorted((folder / "home" / "runs").glob("*/supervisor.error"))[:5]:
        print(f"  {error.parent.name}: {error.read_text().strip().splitlines()[-1]}")
    return len(wrong) + len(strangers) + len(tired)


def _table(rows: dict[str, str]) -> None:
    width = max(map(len, rows))
    print("\n".join(f"{name.ljust(width)}  {value}" for name, value in rows.items()), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=500, help="how many kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="runs that go at once")
    parser.add_argument("--keep", action="store_true", help="leave the folder for a look")
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL of its own")
    parser.add_argument("--url", help="on this PostgreSQL database, which is empty")
    parser.add_argument("--storm", action="store_true", help="chats in a storm; see its --help")
    parser.add_argument("--chaos", action="store_true", help="everything at once; see its --help")
    parser.add_argument("--handles", action="store_true", help="many handles; see its --help")
    parser.add_argument("--moves", action="store_true", help="db move under load; see its --help")
    parser.add_argument("--runs", action="store_true", help="many runs at once; see its --help")
    parser.add_argument("--kills", type=int, help="batches of --count until there were so many")
    parser.add_argument("--into", metavar="FILE", help="a line for each batch; --kills goes on")
    parser.add_argument("--total", metavar="FILE", help="only show what such a file tells")
    if "--storm" in sys.argv:
        from tests.torture import storm

        return storm.main([word for word in sys.argv[1:] if word != "--storm"])
    if "--chaos" in sys.argv:
        from tests.torture.chaos import main as chaos

        return chaos.main([word for word in sys.argv[1:] if word != "--chaos"])
    if "--handles" in sys.argv:
        from tests.torture import sqlite_handles

        return sqlite_handles.main([word for word in sys.argv[1:] if word != "--handles"])
    if "--runs" in sys.argv:
        from tests.torture import many_runs

        return many_runs.main([word for word in sys.argv[1:] if word != "--runs"])
    if "--moves" in sys.argv:
        from tests.torture import store_moves

        return store_moves.main([word for word in sys.argv[1:] if word != "--moves"])
    wanted = parser.parse_args()
    if wanted.total:
        print(ledger.table(ledger.read(wanted.total)))
        return 0
    if wanted.kills:
        if wanted.into is None:
            parser.error("--kills goes on from a file; name it with --into FILE")
        more = ["--postgres"] if wanted.postgres else []
        return ledger.go_on(wanted.kills, wanted.count, wanted.seed, wanted.into, more)
    with (
        folder_for("torture", keep=wanted.keep) as folder,
        store_for(wanted.url, postgres=wanted.postgres) as url,
    ):
        return run(wanted, folder, url)


if __name__ == "__main__":
    sys.exit(main())
