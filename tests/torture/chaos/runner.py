"""The participants, the injection of faults, and the collection of results."""

import heapq
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import corral
from corral.adapters.processes import process
from corral.api import Corral
from corral.db.stateful_table import StatefulTable
from corral.domain.runs.model import Run
from corral.kernel.errors import CorralError
from corral.services.store.declarations import find_declarations
from tests.support.daemon_nodes import on_machine
from tests.support.invariants import check_store
from tests.torture.chaos import faults, journal
from tests.torture.chaos.conversation import ChaosChat
from tests.torture.chaos.faults import Fault
from tests.torture.chaos.machines import ChaosNode, Disk, Network, Server
from tests.torture.chaos.worker import AGENT, UNCONFIRMED
from tests.torture.unrelated_processes import UnrelatedProcesses

MAX_RECOVERY = 150.0
MESSAGE_INTERVAL = 3.0  # seconds between two messages of people
SETTINGS = {
    "nodes.lease_ms": 1_500,
    "runs.lease_ms": int(faults.LEASE * 1_000),
    "mail.backoff_ms": [150, 300, 600],
    "mail.max_attempts": 50,
    "tasks.max_attempts": 50,
}


class Chaos:
    def __init__(self, folder: Path, seed: int, seconds: float, url: str | None, postgres: bool):
        self.folder, self.seed, self.seconds = folder, seed, seconds
        self.out = folder / "out"
        (self.out / "project").mkdir(parents=True)
        (self.out / "agent.py").write_text(AGENT)
        self.counts: Counter[str] = Counter()
        self.killed: Counter[str] = Counter()
        """Killed processes by role."""
        self.impossible: list[str] = []
        """Kinds of faults that are not possible on this machine, with the reason."""
        self.seen: list[tuple[str, int]] = []
        self.waiting: set[str] = set()
        """Machines whose daemon must not be restarted yet."""
        self._undo: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._over = threading.Event()
        self.network: Network | None = None
        self.disk: Disk | None = None
        self.server: Server | None = None
        self._create_environment(url, postgres)
        self.bystanders = UnrelatedProcesses(folder / "signals")
        self.chat = ChaosChat(self.out, seed, self.network.host_address if self.network else None)

    def _create_environment(self, url: str | None, postgres: bool) -> None:
        shared = postgres or url is not None
        if postgres:
            self.network = self._try("cut", Network)
            self.server = Server(self.network.host_address if self.network else None)
            url = self.server.new_database()
        self.disk = self._try("fill", lambda: Disk(self.folder / "disk"))
        small = self.disk.folder if self.disk else self.folder
        self.url = url or f"sqlite:///{small}/corral.db"
        remote_url = (
            self.url.replace("127.0.0.1", self.network.host_address) if self.network else self.url
        )
        corral.open(self.url).close()
        self.machines = {
            "one": ChaosNode(small / "one", self.url, "one", None),
            "two": ChaosNode(
                (self.folder if shared else small) / "two", remote_url, "two", self.network
            ),
        }
        self.kinds = set(faults.BOTH)
        self.kinds |= {"fill"} if self.disk else set()
        self.kinds |= {"cut"} if self.network else set()
        self.kinds |= {"restart"} if self.server else set()

    def _try(self, kind: str, make: Callable[[], "object"]) -> "object | None":
        try:
            return make()
        except OSError as error:
            self.impossible.append(f"{kind}: {error}")
            return None

    # -- participants -----------------------------------------------------------------------------

    def begin(self) -> None:
        with corral.open(self.url, actor="user:chaos") as store:
            for name, value in SETTINGS.items():
                store.settings.set(name, value)
            project = store.projects.register(str(self.out / "project"))
            (self.out / "project" / "id").write_text(project.id)
            for number in range(faults.WORKERS):
                store.agents.create(f"w{number}", command="true")
            self.chat.prepare(store)
            store.schedules.create("queue:series", "again", every_ms=5_000, misfire="all")
        for env in ({}, {"CORRAL_RUN": "run_0"}):
            self.bystanders.add(env)
        for name, machine in self.machines.items():
            threading.Thread(target=self._keep_daemon_up, args=(name, machine), daemon=True).start()
        self._replace_workers()
        threading.Thread(target=self._watch, daemon=True).start()

    def _keep_daemon_up(self, name: str, machine: ChaosNode) -> None:
        while not self._over.wait(0.3):
            if name not in self.waiting and not machine.is_up():
                machine.ensure_up()

    def _replace_workers(self) -> None:
        for number in range(faults.WORKERS):
            name, machine = f"w{number}", self.machines[faults.MACHINES[number % 2]]
            worker = machine.workers.get(name)
            if worker is None or worker.poll() is not None:
                machine.start_worker(name, self.out, self.seed)

    def _watch(self) -> None:
        """Poll the store repeatedly, as an observer."""
        while not self._over.wait(0.4):
            with suppress(CorralError), corral.open(self.url, actor="user:watcher") as store:
                while not self._over.wait(0.4):
                    things = [
                        *store.runs.list(limit=50).items,
                        *store.mail.list(limit=200).items,
                        *store.nodes.list(limit=20).items,
                    ]
                    self.seen += [(thing.id, thing.fence) for thing in things]

    # -- faults -----------------------------------------------------------------------------------

    def inject_faults(self) -> None:
        start = last_print = time.monotonic()
        pending = faults.plan(self.seed, self.seconds, self.kinds)[::-1]
        while (now := time.monotonic() - start) < self.seconds:
            while pending and pending[-1].at <= now:
                self.inject(pending.pop(), now)
            while self._undo and self._undo[0][0] <= now:
                heapq.heappop(self._undo)[2]()
            self._replace_workers()
            if now > len(self.chat.posted) * MESSAGE_INTERVAL:
                self.chat.post_message()
            if time.monotonic() - last_print > 20:
                last_print = time.monotonic()
                print(f"  {now:4.0f} s: {sum(self.counts.values())} faults", flush=True)
            time.sleep(0.05)

    def schedule_undo(self, at: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._undo, (at, next(self._numbers), call))

    def inject(self, fault: Fault, now: float) -> None:
        machine = self.machines[fault.machine]
        action, _, role = fault.kind.partition(" ")
        until = now + fault.lasts
        if action == "kill" and role == "daemon":
            if not machine.is_up():
                return
            self._keep_daemon_down(machine, until)
            self._signal(machine.pid, signal.SIGKILL)
            self.killed["daemon"] += 1
        elif action in ("kill", "stop") and role in ("supervisor", "guard", "agent"):
            if not self._inject_into_run(fault, role, until):
                return
        elif action in ("kill", "stop") and role == "worker":
            self._inject_into_worker(fault, until)
        elif action == "stop":
            self._stop(machine, role, until)
        else:
            self._inject_into_environment(fault, machine, until)
        self.counts[fault.kind] += 1

    def _inject_into_environment(self, fault: Fault, machine: ChaosNode, until: float) -> None:
        if fault.kind == "power":
            self._keep_daemon_down(machine, until)
            self.killed["by a loss of power"] += machine.kill_all()
        elif fault.kind == "down":
            self._keep_daemon_down(machine, until)
            subprocess.Popen(
                [sys.executable, "-m", "corral", "down"],
                cwd=machine.work,
                env=machine.env,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        elif fault.kind == "clock":
            machine.move_clock(fault.ms)
            self.schedule_undo(until, lambda: machine.move_clock(0))
        elif fault.kind == "restart" and self.server is not None:
            self.server.stop(signal.SIGQUIT)
            self.server.start()
        elif fault.kind == "fill" and self.disk is not None:
            self.disk.fill()
            self.schedule_undo(until, self.disk.free)
        elif fault.kind == "cut" and self.network is not None:
            self.network.cut()
            self.schedule_undo(until, self.network.restore)

    def _keep_daemon_down(self, machine: ChaosNode, until: float) -> None:
        self.waiting.add(machine.name)
        self.schedule_undo(until, lambda: self.waiting.discard(machine.name))

    def _inject_into_worker(self, fault: Fault, until: float) -> None:
        name, worker = sorted(self.machines[fault.machine].workers.items())[int(fault.pick * 2)]
        if fault.kind == "kill worker":
            self.killed["worker"] += self.machines[fault.machine].kill_worker(name)
        else:
            self._stop_until(worker.pid, until)

    def _stop(self, machine: ChaosNode, role: str, until: float) -> None:
        if role == "daemon":
            self._stop_until(machine.pid, until)
        else:
            machine.signal_all(signal.SIGSTOP)
            self.schedule_undo(until, lambda: machine.signal_all(signal.SIGCONT))

    def _inject_into_run(self, fault: Fault, role: str, until: float) -> bool:
        """Signal a process of a live run; return False if there is none."""
        with suppress(CorralError), corral.open(self.url, actor="user:chaos") as store:
            live = [run for run in store.runs.list(live=True, limit=20).items if run.pid]
            pid = _find(live[int(fault.pick * len(live))], role) if live else None
            if pid is None:
                return False
            if fault.kind.startswith("stop"):
                self._stop_until(pid, until)
                return True
            identity = process.identify(pid)
            self._signal(pid, signal.SIGKILL)
            self.killed[role] += 1
            if identity is not None and fault.pick < 0.4:
                self.bystanders.take_pid_of(identity)
            return True
        return False

    def _stop_until(self, pid: int, until: float) -> None:
        """Stop a process for a while; at its end the pid may belong to another process."""
        if pid > 1 and (identity := process.identify(pid)) is not None:
            self._signal(pid, signal.SIGSTOP)
            self.schedule_undo(until, lambda: process.send_signal(identity, signal.SIGCONT))

    @staticmethod
    def _signal(pid: int, number: int) -> None:
        if pid > 1:
            with suppress(OSError):
                os.kill(pid, number)

    # -- the end ---------------------------------------------------------------------------------

    def recover(self) -> float:
        """Repair everything and wait until no work is left; return how long that took."""
        while self._undo:
            heapq.heappop(self._undo)[2]()
        for machine in self.machines.values():
            machine.signal_all(signal.SIGCONT)
        (self.out / "calm").touch()
        start = time.monotonic()
        with corral.open(self.url, actor="user:chaos") as store:
            for series in store.schedules.list().items:
                store.schedules.delete(series.id)
            while time.monotonic() - start < MAX_RECOVERY:
                self._replace_workers()
                if time.monotonic() - start > 5:
                    self._resolve_unconfirmed(store)
                if not self._list_open(store):
                    break
                time.sleep(0.3)
            for item in self._list_open(store)[:10]:
                print(f"  still open: {item}")
        return time.monotonic() - start

    def _resolve_unconfirmed(self, store: Corral) -> None:
        """Resolve unconfirmed letters by what was actually done."""
        unconfirmed = store.mail.list(state="unconfirmed", limit=200).items
        acted = {n.subject for n in journal.read_entries(self.out) if n.action == "act in doubt"}
        for letter in unconfirmed:
            if letter.mailbox == UNCONFIRMED:
                with suppress(CorralError):
                    store.mail.resolve(letter.id, delivered=letter.id in acted)

    def _list_open(self, store: Corral) -> list[str]:
        tasks = store.tasks.list(limit=1_000).items
        unsealed = store.internal.outputs.list_unsealed
        return [
            *self.chat.list_unanswered(),
            *(f"{run.id} is {run.state}" for run in store.runs.list(live=True).items),
            *(f"{letter.id} waits" for letter in store.mail.list(limit=200).items),
            *(f"{letter.id} unconfirmed" for letter in store.mail.list(state="unconfirmed").items),
            *(f"{timer.id} pending" for timer in store.timers.list().items),
            *(f"{task.key} is {task.state}" for task in tasks if task.ended_at is None),
            *(f"{run.id} unsealed" for host in self.machines for run in unsealed(host=host).items),
        ]

    def end(self) -> list[str]:
        """Stop all processes; return those that did not end."""
        self._over.set()
        (self.out / "over").touch()
        for machine in self.machines.values():
            for worker in machine.workers.values():
                with suppress(subprocess.TimeoutExpired):
                    worker.wait(20)
            machine.corral("down")
        deadline = time.monotonic() + 20
        while (remaining := self._list_processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return [f"{pid} {' '.join(process.read_command_line(pid))[:100]}" for pid in remaining]

    def _list_processes(self) -> list[int]:
        return [pid for machine in self.machines.values() for pid in machine.processes()]

    def history(self, remaining: list[str]) -> journal.History:
        moves = {
            table.transitions.kind: table.transitions
            for table in find_declarations(StatefulTable).values()
        }
        result = journal.History(
            moves, seen=self.seen, left=remaining, notes=journal.read_entries(self.out)
        )
        result.signalled = self.bystanders.judge()
        result.said, result.shown = self.chat.posted, self.chat.shown
        with corral.open(self.url, actor="user:chaos") as store:
            result.heard = self.chat.list_received(store)
            cursor = None
            while items := (page := store.events.after(cursor, limit=1_000)).items:
                cursor = page.next
                result.events += [
                    journal.StoreEvent(item.kind, item.verb, item.subject, item.data)
                    for item in items
                ]
            kinds = {note.subject: note.key for note in result.notes if note.action == "run"}
            for file in sorted(self.out.glob("*.ran")):
                result.runs += _attempts(store, file, kinds.get(file.stem) == "pty")
            check_store(store)
        return result

    def close(self) -> None:
        self._over.set()
        self.bystanders.end()
        self.chat.close()
        for machine in self.machines.values():
            machine.signal_all(signal.SIGCONT)
            machine.kill_processes()
        for thing in (self.server, self.network, self.disk):
            if thing is not None:
                thing.close()


def _find(run: Run, role: str) -> int | None:
    """Return the process of a run if it is still the same one."""
    pid, token = (run.supervisor_pid, run.supervisor_token)
    if role != "supervisor":
        pid, token = run.pid, run.start_token
    proc_stat = process.read_stat(pid) if pid else None
    if proc_stat is None or proc_stat.start_token != token:
        return None
    if role != "guard":
        return pid
    is_guard = proc_stat.parent > 1 and "corral.supervisor" in process.read_command_line(
        proc_stat.parent
    )
    return proc_stat.parent if is_guard else None


def _attempts(store: Corral, file: Path, is_lossy: bool) -> list[journal.AttemptRecord]:
    """Return an agent's records of its attempts, and what is shown of each."""
    attempts: dict[int, journal.AttemptRecord] = {}
    for line in file.read_text().splitlines():
        pid, action, *rest = line.split()
        attempt = attempts.setdefault(
            int(pid), journal.AttemptRecord(file.stem, int(pid), is_lossy=is_lossy)
        )
        attempt.wrote += action == "wrote"
        attempt.end = rest[0] if action == "end" else attempt.end
    text = b""
    with suppress(CorralError), on_machine(store.outputs.get(file.stem).host or ""):
        reader = store.outputs.open(file.stem)
        while piece := reader.bytes(len(text), 1 << 20):
            text += piece
    for attempt in attempts.values():
        attempt.shown = []
    for pid, number in re.findall(rb"^(\d+):(\d{6}) x{40}\r?$", text, re.MULTILINE):
        if int(pid) in attempts:
            numbers = attempts[int(pid)].shown
            assert numbers is not None
            numbers.append(int(number))
    return [*attempts.values()]
