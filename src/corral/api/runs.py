import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal, TypedDict, Unpack

import msgspec

from corral.adapters import process
from corral.api.operation import Room, read, write
from corral.api.outputs import Outputs
from corral.db.tx import Tx
from corral.domain.outputs.model import OutputState
from corral.domain.projects import ops as projects
from corral.domain.runs import dispatch, ops
from corral.domain.runs import heartbeat as runs_heartbeat
from corral.domain.runs.model import Found, Run, RunState
from corral.kernel.clock import DAY
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.kernel.text import check_int
from corral.services.runs.recovery import Recovery

Findings = list[Found]

LONGEST_SLEEP = 1.0


def forget(tx: Tx, id: str) -> Run:
    """Forget a run that is over, and what it wrote: in the store, and in the search."""
    from corral.domain.search import ops as search

    run = ops.delete(tx, id)
    while not search.forget(tx, "output", run.id):
        pass
    return run


def heartbeat(
    tx: Tx,
    run: Run,
    *,
    output_bytes: int,
    cpu_ms: int | None = None,
    peak_bytes: int | None = None,
    lease_ms: int = runs_heartbeat.LEASE_MS,
) -> Run:
    """Renew a keeper's lease, and with it everything that the run has locked and the tasks that are
    done in it; the answer tells whether the run is to be stopped.

    Held when another keeper took it over, or a recovery gave it up.
    """
    from corral.domain.locks import heartbeat as locks
    from corral.domain.tasks import heartbeat as tasks

    renewed = runs_heartbeat.heartbeat(
        tx,
        run,
        output_bytes=output_bytes,
        cpu_ms=cpu_ms,
        peak_bytes=peak_bytes,
        lease_ms=lease_ms,
    )
    tasks.renew_of_run(tx, run.id)
    locks.renew_all(tx, run.id)
    return renewed


class Sent(msgspec.Struct, frozen=True):
    """Where a text for a run went."""

    run_id: str
    how: Literal["typed", "answered", "mailed"]
    letter_id: str | None
    option: str | None = None
    """The selected option of the dialog."""


class Wishes(TypedDict, total=False):
    """What `ask` takes; see `asking.Wish`."""

    prompt: str | None
    command: Sequence[str] | None
    agent: str | None
    project: str | None
    dir: str | None
    session: str | None
    name: str | None
    timeout_ms: int | None
    idle_ms: int | None
    grace_ms: int | None
    restarts: int | None
    env: Mapping[str, str]
    secrets: Mapping[str, str]
    budget_micros: int | None
    output_cap: int | None
    approvals: Sequence[str]
    sandbox: str | None
    terminal: bool | None
    watched: bool
    acp: bool
    host: str | None
    labels: Sequence[str]
    claimed: bool
    afar: bool


class Runs(Room):
    """Processes of agents, and how they ended."""

    noun = "run"

    request = write(ops.request)
    get = read(ops.get)
    by_pid = read(ops.by_pid, mode="one")
    list = read(ops.list_runs)
    asking = read(ops.asking, mode="one")
    launch_of = read(ops.launch_of)
    samples = read(ops.samples)
    finish = write(ops.finish, repeatable=True)
    lose = write(ops.lose, repeatable=True)
    fail = write(ops.fail, repeatable=True)

    # What keepers say.
    start = write(runs_heartbeat.start)
    launch = write(runs_heartbeat.launch)
    restart = write(runs_heartbeat.restart)
    heartbeat = write(heartbeat, repeatable=True)
    begin_to_stop = write(ops.stop, repeatable=True)
    take_over = write(runs_heartbeat.take_over)
    call_for = write(runs_heartbeat.call_for, repeatable=True)
    tell = write(runs_heartbeat.tell, mode="one", repeatable=True)
    count_denials = write(runs_heartbeat.count_denials, repeatable=True)
    link_session = write(runs_heartbeat.link_session, repeatable=True)
    describe = write(runs_heartbeat.describe, mode="one", repeatable=True)
    add_sample = write(runs_heartbeat.add_sample, mode="one", repeatable=True)
    park = write(runs_heartbeat.park)
    end = write(ops.end, repeatable=True)
    give_up = write(ops.give_up, repeatable=True)

    _record = write(ops.record)
    _delete = write(forget)
    _active = read(ops.active)
    next_due = read(dispatch.next_due, mode="one")
    _next_queued = read(dispatch.next_queued)
    _can_claim = read(dispatch.can_claim)
    _waits_for_claims = read(dispatch.waits_for_claims)
    _claim = write(dispatch.claim, repeatable=True)
    _agent_has_room = read(dispatch.agent_has_room)
    unclaim = write(dispatch.unclaim, mode="one", repeatable=True)
    _put_off = write(dispatch.put_off, repeatable=True)
    _room_for = read(dispatch.room_for)

    def record(
        self,
        *,
        pid: int,
        project: str | None = None,
        command: str | None = None,
        args: Sequence[str] = (),
        cwd: str | None = None,
    ) -> Run:
        """Track a process that Corral did not start; its identity is read at once."""
        found = process.identify(pid) if isinstance(pid, int) and pid > 1 else None
        if found is None:
            raise NotFound(f"There is no process {pid} on this machine.", pid=pid)
        told = process.command_of(pid)
        return self._record(
            pid=pid,
            host=found.host,
            boot_id=found.boot_id,
            start_token=found.start_token,
            command=command or (told[0] if told else "unknown"),
            args=args or told[1:],
            cwd=cwd or process.cwd_of(pid) or "/",
            project_id=self._database.read(lambda tx: projects.get(tx, project).id)
            if project
            else None,
        )

    def stop(self, id: str, *, reason: str = "stopped", grace_ms: int | None = None) -> Run:
        """Ask a run to end, with its whole process tree: asked first, killed after the grace time.

        It comes back at once; `wait` tells how it ended. A queued run is cancelled.
        """
        if grace_ms is not None and not 0 <= check_int(grace_ms, "grace_ms") <= DAY:
            raise Invalid(f"A run is given up to a day to end, not {grace_ms:,} ms.")
        run = self.begin_to_stop(id, reason=reason)
        if run.is_live:
            Recovery(self).see_to_the_end(run, grace_ms)
        return run

    def wait(self, id: str, *, timeout_ms: int | None = None) -> Run:
        """Wait until a run is over; Refused when it is not within the time."""
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1_000
        looked = time.monotonic()
        with self._database.listening() as listener:
            run = self.get(id)
            while run.is_live:
                left = LONGEST_SLEEP if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise Refused(f"{run.id} is still {run.state}.", id=run.id, state=run.state)
                listener.wait(min(left, LONGEST_SLEEP))
                if time.monotonic() - looked > LONGEST_SLEEP:
                    # Whoever should say how it ended, or start it in time, may be gone.
                    Recovery(self).look_at(run)
                    if run.state is RunState.QUEUED and run.due_at <= self._database.clock.now():
                        self.start_queued()
                    looked = time.monotonic()
                run = self.get(run.id)
        return run

    def ask(self, **wish: Unpack[Wishes]) -> Run:
        """Ask for a run of an agent with a prompt, or of any command.

        It is queued until a keeper takes it; `corral run` and `start_queued` see to that.
        """
        from corral.services.runs import request as runs_request

        return self._database.write(lambda tx: runs_request.ask(tx, runs_request.Wish(**wish)))

    def resume(self, id: str, **wish: Unpack[Wishes]) -> Run:
        """Go on where a run or a session stopped, with its agent, conversation and limits.

        The new run is queued, as with `ask`. The directory must still be there.
        """
        from corral.services.runs import request as runs_request

        return self._database.write(
            lambda tx: runs_request.resume(tx, id, runs_request.Wish(**wish))
        )

    def send(self, id: str, text: str, *, enter: bool = True, dialog: str | None = None) -> Sent:
        """Send text to a run: an answer to the dialog that is open, else its next prompt.

        While the run asks something, only an option of its dialog is accepted: the number, the
        label, or a plain yes or no; otherwise raises Invalid with the options. With `dialog`, the
        text answers only the dialog with that id; otherwise raises Conflict. Text for an agent CLI
        at a terminal is typed, submitted, and confirmed on its screen; raises Conflict when the
        CLI did not accept it. A run without input gets a letter in its session's mailbox.
        """
        from corral.services.runs import input

        return input.send(self, id, text, enter=enter, dialog=dialog)

    def refreshed(self, run: Run) -> Run:
        """A run as it is now; one whose keeper is gone is looked after first."""
        now = self.get(run.id)
        if now.is_live and Recovery(self).look_at(now) is not None:
            now = self.get(run.id)
        return now

    def takes_input(self, run: Run) -> bool:
        """Whether a run reads what whoever asked for it types or pipes."""
        return self.launch_of(run.id).prompt is None

    def wait_for_start(self, id: str, *, given_up: Callable[[], bool] | None = None) -> Run:
        """Wait until a queued run has been taken by a keeper, or `given_up` says not to."""
        with self._database.listening() as listener:
            while (run := self.get(id)).state is RunState.QUEUED:
                if given_up is not None and given_up():
                    break
                self.start_queued()
                listener.wait(LONGEST_SLEEP)
        return run

    def recover(self) -> Findings:
        """Find the runs whose process or keeper is gone, and say what was found, with reasons.

        It is safe at any time and beside others who do the same. Nothing is signalled whose
        identity is not proven.
        """
        return Recovery(self).run()

    def delete(self, id: str) -> Run:
        """Forget a run that is over, with its output and files."""
        run = self._delete(id)
        Outputs(self._database).clear_deleted()
        return run

    def delete_all(self, *, project: str) -> int:
        """Forget all runs of a project; refused while one of them is not over."""
        whole = self._database.read(lambda tx: projects.get(tx, project).id)
        if live := self.list(project=whole, live=True, limit=1).items:
            raise Conflict(
                f"{live[0].id} is {live[0].state}; stop it first (`corral stop {live[0].id}`).",
                id=live[0].id,
                reason="run_active",
            )
        deleted = 0
        while page := self.list(project=whole, limit=200).items:
            for run in page:
                self._delete(run.id)
                deleted += 1
        Outputs(self._database).clear_deleted()
        return deleted

    def after_end(self, run: Run, *, secrets: Sequence[str] = ()) -> None:
        """See to what a run that is over leaves: tasks that it did not submit go back, who waits in
        line goes next, its locks are given back, those who asked to be told are told, its output is
        made findable and sealed. It may be called again, by anybody, at any time."""
        if not run.is_live:
            self._give_tasks_back(run)
            self._tell_race(run)
        self.start_queued()
        if not run.is_live:
            self._give_locks_back(run)
            from corral.api.alerts import Alerts
            from corral.services.runs.output_index import make_findable

            Alerts(self._database).see_to_delivery()
            # A recorded process has no output, a deleted run neither; and where there is no room to
            # seal it, it stays as it is until the next time.
            with suppress(NotFound, Refused):
                outputs = Outputs(self._database)
                if outputs.get(run.id).state is OutputState.OPEN and run.provider == "plain":
                    make_findable(self._database, outputs, run, secrets)
                from corral.adapters.output.redact import Redactor

                outputs.seal_folder(
                    run.id,
                    cap=self.launch_of(run.id).output_cap,
                    redactor=lambda: Redactor(secrets),
                )

    def _give_tasks_back(self, run: Run) -> None:
        from corral.domain.tasks import heartbeat as tasks

        if self._database.read(lambda tx: tasks.has_tasks(tx, run.id)):
            from corral.domain.tasks import lifecycle

            why = f"its run {run.id} ended ({run.state}) without a submit"
            self._database.write(lambda tx: lifecycle.release_of_run(tx, run.id, why))

    def _tell_race(self, run: Run) -> None:
        from corral.domain.races import heartbeat as races

        if self._database.read(lambda tx: races.has_attempt(tx, run.id), mode="one"):
            from corral.domain.races import driver

            self._database.write(lambda tx: driver.end_of_run(tx, run))

    def _give_locks_back(self, run: Run) -> None:
        from corral.domain.locks import heartbeat as locks

        if self._database.read(lambda tx: locks.has_any(tx, run.id), mode="one"):
            from corral.api.locks import Locks

            Locks(self._database).end_of_run(run.id)

    def start_queued(self) -> Sequence[Run]:
        """Start keepers for the runs that are next in line here, while there is room; gives these.

        One that cannot be started ends as failed, and does not hold up the others. One that may run
        anywhere is left to a machine that has its directory.
        """
        from corral.adapters.supervisor_process import KeeperLost, StartingKeeper

        host = process.host()
        started = []
        passed: set[str] = set()
        while self._can_claim(host=host) and (
            run := self._next_queued(host=host, passed=sorted(passed))
        ):
            if (why := self._not_here(run)) is not None:
                passed.add(why)
                continue
            if not self._claim(run.id, host=host):
                continue  # another one was quicker, or has the place
            try:
                answer = StartingKeeper().keep(store=self._database.address, run=run.id)
            except KeeperLost:
                self._put_off(run.id, reason="its keeper was lost before it began")
                continue
            except OSError:  # no process could be made: none has it, nor will
                self.unclaim(run.id)
                raise
            if "pid" in answer:
                started.append(run)
            elif "failed" in answer:
                from corral.api.alerts import Alerts

                Alerts(self._database).see_to_delivery()
            else:  # it waits, or another has it: the next one may start
                passed.add(run.id)
        return started

    def see_to_line(self) -> None:
        """As `start_queued`, and again while all room is claimed: of one who claimed a run and
        died, nobody else may ever hear."""
        host = process.host()
        with self._database.listening() as listener:
            while True:
                # Asked before and after: a claim may end, or begin, while the line is looked at.
                waits = self._waits_for_claims(host=host)
                self.start_queued()
                if not waits and not self._waits_for_claims(host=host):
                    return
                listener.wait(LONGEST_SLEEP)

    def _not_here(self, run: Run) -> str | None:
        """Why a run is not to be started here and now: its agent is busy enough, or its project's
        directory is not here and it may run elsewhere. None: it is."""
        if run.agent_id is not None and not self._agent_has_room(run.agent_id):
            return run.agent_id
        if run.host is None and not os.path.isdir(run.cwd):
            return run.project_id or run.id
        return None
