"""The event loop of one run: start the agent, watch it, and record how it ended.

`Supervisor` is an event loop over file descriptors and deadlines. It holds the run by a lease with
a fencing token, handles stop requests (from the control socket, or from the run's state in the
store), terminates all processes of the run when it has to, and starts the next attempt when the
restart policy allows it. The store learns of every step first, so that a recovery can continue
after the death of this process. The package docstring describes the other processes involved.
"""

import os
import select
import signal
import time
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from corral.adapters import process, process_marks
from corral.adapters.process import ProcessIdentity
from corral.domain.runs import outcome
from corral.domain.runs.model import Attention, Dialog, Launch, Run, StopKind
from corral.kernel.errors import Conflict, CorralError, StoreUnavailable
from corral.kernel.exit_status import ExitStatus
from corral.supervisor.agent_io import AgentIO
from corral.supervisor.child import LEFTOVER_GRACE_MS, AdoptedProcess, CannotStart, ChildProcess
from corral.supervisor.control_server import ControlServer
from corral.supervisor.launch_plan import LaunchPlan
from corral.supervisor.lease import RunLease
from corral.supervisor.output import OutputWriter
from corral.supervisor.streams import AgentStreams
from corral.supervisor.terminate import Terminator
from corral.supervisor.usage import UsageMeter

if TYPE_CHECKING:
    from corral.adapters.process_ancestry import Ancestor
    from corral.api import Corral
    from corral.kernel.identity import RunIdentity

MAX_POLL_SECONDS = 5.0  # between two checks of a parked run
WATCHER_SECONDS = 2.0  # maximum wait for the caller to attach
TRIM_SECONDS = 2.0  # between two checks of the output cap
# A terminal interface that is not recognized after this time counts as started.
MAX_START_SECONDS = 120.0
MAX_PARENTS = 50  # maximum depth of nested runs that is searched for a caller


class NextStep(Enum):
    """What follows the end of an attempt."""

    FINISH = auto()  # the run ends
    RESTART = auto()  # another attempt, after a back-off
    PARK = auto()  # another attempt, when the provider's quota is reset


class Supervisor:
    """One run, from its start or adoption to its end."""

    def __init__(self, store: "Corral", run: Run, launch: Launch, plan: LaunchPlan) -> None:
        self._store = store
        self._lease = RunLease(
            store,
            run,
            secrets=list(plan.secrets.values()),
            is_pinned=launch.host is not None,
        )
        self._launch = launch
        self._plan = plan
        self.folder: Path = plan.folder
        self._mark = process_marks.run_mark(run.id)
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        # The current attempt; None between two attempts.
        self._agent: ProcessIdentity | None = None
        self._child: ChildProcess | AdoptedProcess | None = None
        self._streams: AgentStreams | None = None
        self._agent_io = AgentIO()
        self._output = OutputWriter(
            self.folder, cap=launch.max_output_bytes, secrets=plan.secrets.values()
        )
        self._started_at = 0.0
        self._active_at = 0.0
        # How the attempt is to end.
        self._interrupted = False
        self._verdict: tuple[str, str] | None = None
        self._is_idle = False
        self._is_unanswered = False
        self._grace_period_ms = launch.grace_period_ms
        self._terminator: Terminator | None = None
        # Clients of the control socket, and resource usage.
        self._control: ControlServer | None = None
        self._usage = UsageMeter()
        self._watcher_deadline: float | None = None
        self._next_trim = 0.0

    @property
    def secrets(self) -> list[str]:
        """The secret values of the run, which must not be stored anywhere."""
        return list(self._plan.secrets.values())

    @property
    def run(self) -> Run:
        """The run as last read from the store."""
        return self._lease.run

    # -- the life of a run ---------------------------------------------------------------------

    def start(self, *, watched: bool = False) -> None:
        """Acquire the run and start its first attempt.

        With `watched`, terminal output is not read until the caller has attached, for at most
        `WATCHER_SECONDS`. Raises Conflict when another supervisor has the run, and CannotStart when
        the program cannot be executed; the run is then recorded as failed.
        """
        self._start_attempt(None)
        self._open_control()
        if watched:
            self._watcher_deadline = time.monotonic() + WATCHER_SECONDS

    def adopt(self, verdict: tuple[str, str] | None = None) -> None:
        """Take over a run whose supervisor is gone; the agent is alive, or ended meanwhile.

        `verdict` is the verb and reason that a recovery chose for an agent that is gone. Raises
        Conflict when another supervisor was faster.
        """
        self._verdict = verdict
        self._agent = self._lease.take_over()
        self._child = AdoptedProcess(self._agent, self.folder, self.run.attempts)
        self._agent_io = self._plan.adopted_agent_io(self.run, self._lease.log)
        age = max(0, self._store.now() - (self.run.started_at or 0)) / 1_000
        self._started_at = time.monotonic() - age
        self._active_at = time.monotonic()
        self._open_control()

    def supervise(self) -> Run:
        """Supervise the run until it has ended, or another supervisor has it; return the run."""
        self._lease.record_environment(self._plan.describe_environment())
        self._record_size()
        while True:
            end = self._watch_attempt()
            if self._lease.is_replaced:
                return self.run
            quick_failures = self._count_quick_failures(end)
            self._renew_lease()  # reads a stop request, which rules out another attempt
            next_step = self._decide(end, quick_failures)
            if next_step is NextStep.PARK and not self._wait_for_quota():
                return self.run
            if next_step is NextStep.RESTART and not self._wait_before_restart(quick_failures):
                next_step = NextStep.FINISH
            if next_step is NextStep.FINISH:
                return self._finish(end)
            # A parked run is queued, so its next attempt is acquired like the first one.
            previous = None if next_step is NextStep.PARK else end
            try:
                self._start_attempt(previous, quick_failures)
            except (CannotStart, Conflict):
                return self._store.runs.get(self.run.id)

    def interrupt(self) -> None:
        """End the run because this process received SIGTERM. Called from the signal handler."""
        self._interrupted = True
        with suppress(OSError):
            os.write(self._wake_writer, b".")

    def _open_control(self) -> None:
        self._control = ControlServer(self.folder, self)
        # A stop that was requested before the socket existed is only in the store: read it now.
        self._lease.next_beat = time.monotonic()

    # -- attempts ------------------------------------------------------------------------------

    def _start_attempt(self, previous: ExitStatus | None, quick_failures: int = 0) -> None:
        """Start the next attempt; `previous` is the end of the one before.

        The agent's process is created first and its identity recorded; only then is its program
        executed. So the store knows every agent that ever ran.
        """
        attempt = self.run.attempts + 1
        command = self._plan.build_command(resume=attempt > 1)
        self._streams = streams = self._plan.streams(command)
        child = ChildProcess.fork(
            command.args,
            cwd=self.run.cwd,
            env=self._plan.env(command),
            stdio=streams.stdio(),
            folder=self.folder,
            attempt=attempt,
        )
        streams.close_child_ends()
        try:
            agent = process.identify(child.pid)
            assert agent is not None
            self._lease.acquire(agent, self.folder, previous, quick_failures)
            self._agent_io = self._plan.agent_io(command, self.run, streams, self._lease.log)
        except BaseException:
            child.end()
            child.close()
            streams.close()
            raise
        self._agent, self._child = agent, child
        self._started_at = self._active_at = time.monotonic()
        try:
            child.execute()
        except CannotStart as error:
            child.end()
            child.close()
            self._finish(ExitStatus(exit_code=error.exit_code, reason=error.reason))
            raise
        self._lease.mark_launched()

    def _count_quick_failures(self, end: ExitStatus) -> int:
        lasted_ms = int((time.monotonic() - self._started_at) * 1_000)
        return outcome.count_quick_failures(self.run.quick_failures, end, lasted_ms)

    def _decide(self, end: ExitStatus, quick_failures: int) -> NextStep:
        """Decide what follows an attempt, and park the run if its quota is exhausted."""
        limit = self._agent_io.quota_limit
        if limit is not None and self._is_quota_end(end):
            is_parked = self._lease.park(limit)
            if is_parked:
                return NextStep.PARK
        if end.finished_work or end.signal_was_forwarded:
            return NextStep.FINISH
        should_restart = outcome.should_restart(
            end,
            stop_reason=self._lease.stop_reason,
            attempts=self.run.attempts,
            max_restarts=self._launch.max_restarts,
            quick_failures=quick_failures,
        )
        return NextStep.RESTART if should_restart else NextStep.FINISH

    def _wait_before_restart(self, quick_failures: int) -> bool:
        """Wait for the back-off before the next attempt; return False if the run was stopped."""
        until = time.monotonic() + outcome.compute_backoff_ms(quick_failures) / 1_000
        self._forget_attempt()
        while time.monotonic() < until and self._lease.stop_reason is None:
            self._process_events(until - time.monotonic())
        return self._lease.stop_reason is None

    def _is_quota_end(self, end: ExitStatus) -> bool:
        """Whether the agent failed by itself, so that an exhausted quota is the cause."""
        return end.exit_code != 0 and self._lease.stop_reason is None

    def _wait_for_quota(self) -> bool:
        """Wait until the provider's quota is reset; return False if the run is no longer ours.

        The run is queued meanwhile: if this process dies, another one starts the run in time.
        """
        self._forget_attempt()
        while (left := self.run.due_at - self._store.now()) > 0:
            if self._interrupted:
                return False
            self._process_events(min(left / 1_000, MAX_POLL_SECONDS))
            with suppress(StoreUnavailable):
                if self._store.runs.get(self.run.id).fence != self.run.fence:
                    return False
        return True

    def _forget_attempt(self) -> None:
        self._agent = self._child = self._streams = self._terminator = None

    def _finish(self, end: ExitStatus) -> Run:
        """Record the end of the run and disconnect all clients."""
        self._plan.close()
        self._lease.record_end(end, self._output.bytes(), self._verdict)
        if self._control is not None:
            self._control.end({"exit_code": self.run.exit_code, "signal": self.run.signal})
            self._control = None
        return self.run

    # -- the end of an attempt -----------------------------------------------------------------

    def _watch_attempt(self) -> ExitStatus:
        """Watch the agent until it has ended; return its end after all output was read."""
        end = self._wait_for_end()
        while not (end.known or self._lease.is_replaced) and self._is_agent_alive():
            # Only the guard was killed. The agent continues; its exit status will be unknown.
            self._watch_without_guard()
            end = self._wait_for_end()
        if self._lease.is_replaced:
            return end
        survivors = self._terminate_leftovers()
        self._close_attempt()
        may_have_survivors = not end.known and not process_marks.is_supported()
        return self._interpret_end(
            end._replace(survivors=survivors, may_have_survivors=may_have_survivors)
        )

    def _wait_for_end(self) -> ExitStatus:
        """Process events until the agent has ended; unknown if another supervisor has the run."""
        while not self._process_events(self._seconds_until_next_deadline()):
            pass
        if self._lease.is_replaced:
            return ExitStatus()
        self._drain()
        assert self._child is not None
        return self._child.end()

    def _watch_without_guard(self) -> None:
        assert self._agent is not None
        assert self._child is not None
        self._child.close()
        self._child = AdoptedProcess(self._agent, self.folder, self.run.attempts)

    def _close_attempt(self) -> None:
        """Read the rest of output and transcript, and import the results of a sandbox."""
        self._drain()
        if self._streams is not None:
            self._streams.close()
        self._output.close()
        if self._output.error is not None:
            details = {"reason": self._output.error, "bytes": self._output.lost_bytes}
            self._lease.log("error", "Some output could not be written and is lost.", details)
        self._agent_io.close()
        self._agent_io.close_transcript()
        # The transcript names the provider's session, whose files are imported.
        self._plan.collect(self._lease.log)

    def _is_agent_alive(self) -> bool:
        return self._agent is not None and process.check(self._agent) is process.Liveness.ALIVE

    def _interpret_end(self, end: ExitStatus) -> ExitStatus:
        """Combine the exit status with the outcome that the agent itself reported."""
        if self._is_idle:
            return self._interpret_idle_end(end)
        forwarded = self._control.forwarded_signals if self._control is not None else set()
        typed = self._streams.typed_signals if self._streams is not None else set()
        was_forwarded = end.was_ended_by(forwarded | typed)
        end = end._replace(signal_was_forwarded=was_forwarded)
        result = self._agent_io.result
        if result is None or result.ok:
            return end._replace(finished_work=self._agent_io.is_done)
        if was_forwarded:
            return end
        return end._replace(reason=result.message or "the agent reported a failure")

    def _interpret_idle_end(self, end: ExitStatus) -> ExitStatus:
        """Return the end of an idle run: completed only if the agent quit when it was asked to.

        A run is cancelled if its agent was forced to end, or waited for an answer.
        """
        forced_by = self._terminator.forced_by if self._terminator is not None else None
        if self._is_unanswered:
            return end._replace(signal_was_forwarded=True, reason=outcome.UNANSWERED_REASON)
        if forced_by is not None:
            reason = f"{outcome.IDLE_REASON}; it did not quit and was ended with {forced_by.name}"
            return end._replace(signal_was_forwarded=True, reason=reason)
        return end._replace(finished_work=True, reason=outcome.IDLE_REASON)

    def _terminate_leftovers(self) -> tuple[int, ...]:
        """Terminate the processes that the agent left behind; return the pids that survived."""
        assert self._child is not None
        find = partial(
            process.find_run_processes,
            None,
            self._mark,
            guard=self._child.guard,
            spare_others=True,
        )
        leftovers = find()
        if leftovers:
            killed = process.terminate_run_processes(
                None,
                self._mark,
                grace_period_ms=LEFTOVER_GRACE_MS,
                guard=self._child.guard,
                spare_others=True,
            )
            counts = {"processes": len(leftovers), "killed": killed}
            self._lease.log("warn", "The agent left processes behind; they were ended.", counts)
        survivors = find() if leftovers else []
        self._child.close()
        return tuple(survivor.pid for survivor in survivors)

    # -- the event loop ------------------------------------------------------------------------

    def _process_events(self, seconds: float) -> bool:
        """Wait for at most `seconds`, and handle all events that are ready or due.

        Returns True when the attempt has ended, or the run has another supervisor.
        """
        poll = select.poll()
        exit_fd = self._child.exit_fd if self._child is not None else None
        streams = self._streams
        if self._is_waiting_for_watcher():
            streams = exit_fd = None
        for descriptor in (exit_fd, self._wake_reader):
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        for source in (streams, self._control):
            if source is not None:
                source.register(poll)
        ready = poll.poll(max(0, int(seconds * 1_000)))
        descriptors = {descriptor for descriptor, _ in ready}
        if streams is not None:
            streams.handle(descriptors, self._write_output, self._output.write_errors)
        if self._control is not None:
            self._control.handle(ready)
        if self._wake_reader in descriptors:
            os.read(self._wake_reader, 64)
        self._handle_deadlines()
        return self._lease.is_replaced or self._has_ended(exit_fd, descriptors)

    def _is_waiting_for_watcher(self) -> bool:
        """Whether output stays in the terminal until the first client attaches.

        The client then sees the output from the beginning.
        """
        if self._watcher_deadline is None:
            return False
        has_watcher = self._control is None or self._control.has_watchers
        if has_watcher or time.monotonic() >= self._watcher_deadline:
            self._watcher_deadline = None
        return self._watcher_deadline is not None

    def _has_ended(self, exit_fd: int | None, ready: set[int]) -> bool:
        if exit_fd is not None:
            return exit_fd in ready
        if self._watcher_deadline is not None:
            return False
        # Without pidfd, the exit of a process that is not our child can only be polled.
        return not self._is_agent_alive()

    def _seconds_until_next_deadline(self) -> float:
        now = time.monotonic()
        deadlines = [self._lease.next_beat, self._usage.next_poll, self._next_trim]
        if self._terminator is not None:
            deadlines.append(self._terminator.next_step)
        elif self._launch.timeout_ms is not None:
            deadlines.append(self._started_at + self._launch.timeout_ms / 1_000)
        if self._launch.idle_ms is not None and self._terminator is None:
            deadlines.append(max(self._active_at + self._launch.idle_ms / 1_000, now + 0.05))
        if self._control is not None and self._control.suspend_check_at is not None:
            deadlines.append(self._control.suspend_check_at)
        if self._agent_io.pause is not None:
            deadlines.append(now + self._agent_io.pause)
        if self._plan.confinement is not None:
            deadlines.append(self._plan.confinement.next_poll)
        if self._agent_io.transcript is not None:
            deadlines.append(max(self._agent_io.transcript.next_poll, now + 0.05))
        return min(deadlines) - now

    def _handle_deadlines(self) -> None:
        now = time.monotonic()
        check_at = self._control.suspend_check_at if self._control is not None else None
        if self._control is not None and check_at is not None and now >= check_at:
            self._control.check_suspended()
        if now >= self._next_trim:
            self._next_trim = now + TRIM_SECONDS
            self._output.trim()
        if now >= self._lease.next_beat:
            self._renew_lease()
        if now >= self._usage.next_poll:
            self._lease.record_usage(self._usage.measure(self._agent))
        if self._interrupted and self._lease.stop_reason is None and not self._lease.is_parked:
            self._lease.request_stop(StopKind.INTERRUPTED)
        if self._agent is not None and not self._lease.is_replaced:
            self._poll_agent()
            self._enforce_limits(now)

    def _renew_lease(self) -> None:
        self._lease.renew(self._agent, self._output.bytes(), self._usage)

    # -- limits --------------------------------------------------------------------------------

    def _enforce_limits(self, now: float) -> None:
        """Continue or begin the termination of the agent if it is to stop or exceeds a limit."""
        timeout_ms, idle_ms = self._launch.timeout_ms, self._launch.idle_ms
        if self._terminator is not None:
            self._terminator.step(now)
        elif self._lease.stop_reason is not None or self._agent_io.is_done:
            self._begin_termination()
        elif timeout_ms is not None and now >= self._started_at + timeout_ms / 1_000:
            self._lease.request_stop(StopKind.TIMED_OUT)
        elif (exceeded := self._find_exceeded_limit()) is not None:
            self._kill_agent(exceeded)
        elif idle_ms is not None:
            self._end_if_idle(now, idle_ms / 1_000)

    def _find_exceeded_limit(self) -> str | None:
        """Return a description of the sandbox limit that the run exceeds, or None."""
        if self._plan.confinement is None or self._agent is None:
            return None
        return self._plan.confinement.find_exceeded_limit(self._agent)

    def _kill_agent(self, reason: str) -> None:
        """Kill a sandboxed agent and stop the run.

        All processes of a sandbox die with the process that created the sandbox.
        """
        assert self._agent is not None
        process.send_signal(self._agent, signal.SIGKILL)
        self._grace_period_ms = 0
        self._lease.request_stop(StopKind.INTERRUPTED, reason)

    def _end_if_idle(self, now: float, idle_seconds: float) -> None:
        if self._streams is None or self._streams.source is None:
            # The agent writes its output file itself: use the time of the last write.
            self._active_at = max(self._active_at, now - self._output.age())
        if self._agent_io.is_starting and now < self._started_at + MAX_START_SECONDS:
            self._active_at = now
        if now >= self._active_at + idle_seconds and not self._agent_io.is_working:
            self._is_idle = True
            self._is_unanswered = self._agent_io.attention is Attention.NEEDS_INPUT
            self._begin_termination()

    def _begin_termination(self) -> None:
        asked = (self._is_idle or self._agent_io.is_done) and self._ask_to_quit()
        guard = self._child.guard if self._child is not None else None
        self._terminator = Terminator(
            self._agent, self._mark, guard=guard, grace_period_ms=self._grace_period_ms, asked=asked
        )

    def _ask_to_quit(self) -> bool:
        """Ask an agent that is done, or idle, to quit; return False if there is no way to ask."""
        if self._streams is None:
            return False  # the supervisor before this one had the streams
        if self._agent_io.is_done:
            return self._streams.close_input()
        command = self._plan.provider.quit_command
        return command is not None and self._agent_io.quit(command, self._quit_refused)

    def _quit_refused(self) -> None:
        if self._terminator is not None:
            self._terminator.skip_request()

    # -- output of the agent -------------------------------------------------------------------

    def _write_output(self, data: bytes) -> None:
        self._active_at = time.monotonic()
        self._output.write(data)
        self._agent_io.feed(data)
        if self._control is not None:
            self._control.send_output(data)

    def _drain(self) -> None:
        if self._streams is not None:
            self._streams.drain(self._write_output, self._output.write_errors)

    def _poll_agent(self) -> None:
        """Record what the agent reported since the last call: turns, usage, questions."""
        agent_pid = self._agent.pid if self._agent is not None else None
        has_output, has_items = self._agent_io.poll(), self._agent_io.follow(agent_pid)
        if has_output or has_items:
            self._active_at = time.monotonic()
        attention, dialog = self._agent_io.attention, self._agent_io.dialog
        is_new_dialog = _dialog_id(dialog) != _dialog_id(self.run.dialog)
        if attention != self.run.attention or is_new_dialog:
            self._lease.set_attention(attention, dialog)
        if self._agent_io.over_budget and self._lease.stop_reason is None:
            self._lease.request_stop(StopKind.OVER_BUDGET, self._agent_io.over_budget)

    def _record_size(self) -> None:
        if self._streams is not None and self._streams.size is not None:
            self._lease.record_size(*self._streams.size)

    # -- called by the control server (`ControlTarget`) ----------------------------------------

    @property
    def agent(self) -> ProcessIdentity | None:
        return self._agent

    @property
    def agent_io(self) -> AgentIO:
        return self._agent_io

    @property
    def recent_output(self) -> bytes:
        """The end of the output so far, for a client that attaches now."""
        return self._output.recent

    def type_in(self, data: bytes) -> bool:
        """Type into the agent's terminal; return False if it has none."""
        self._active_at = time.monotonic()
        return self._streams is not None and self._streams.type_in(data)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the agent's terminal to that of a client."""
        if self._streams is not None:
            self._streams.resize(rows, columns)
            self._record_size()
        self._agent_io.resize(rows, columns)

    def check_stop(self, grace_period_ms: int | None) -> None:
        """Read the stop request from the store now; `grace_period_ms` replaces the grace period."""
        if grace_period_ms is not None:
            self._grace_period_ms = grace_period_ms
            if self._terminator is not None:
                self._terminator.shorten_grace(grace_period_ms)
        self._renew_lease()

    def is_sandboxed(self, ancestors: "list[Ancestor]") -> bool:
        """Whether the process with these ancestors belongs to a sandboxed run."""
        with suppress(CorralError), self._store.server_timeout(1.0):
            identity = self._store.run_of_process(ancestors)
            if identity is not None and identity.run is not None:
                return self._store.runs.get_launch(identity.run).sandbox not in (None, "none")
        return False

    def run_of(self, ancestors: "list[Ancestor]") -> "RunIdentity | None":
        """Return the run of the process with these ancestors; None outside of all runs.

        Also None while the store is unavailable, so that a person can always answer.
        """
        with suppress(CorralError), self._store.server_timeout(1.0):
            return self._store.run_of_process(ancestors)
        return None

    def is_started_by(self, caller: "RunIdentity") -> bool:
        """Whether this run was started from inside the caller's run, directly or by another run."""
        with suppress(CorralError), self._store.server_timeout(1.0):
            parent, depth = self.run.parent_id, 0
            while parent is not None and depth < MAX_PARENTS:
                if parent == caller.run:
                    return True
                parent, depth = self._store.runs.get(parent).parent_id, depth + 1
        return False


def _dialog_id(dialog: Dialog | None) -> str | None:
    return None if dialog is None else dialog.id
