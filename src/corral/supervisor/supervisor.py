"""The life of one run: start the agent, watch its attempts, and record how the run ended.

`Supervisor` holds the run by a lease with a fencing token (`lease.py`). It watches each attempt
(`attempt.py`) with an event loop (`event_loop.py`), which handles stop requests and limits
(`limits.py`), and starts the next attempt when the restart policy allows it. The store learns of
every step first, so that a recovery can continue after the death of this process. The package
docstring describes the other processes involved.
"""

import time
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.adapters.processes import process_marks
from corral.adapters.processes.process import ProcessIdentity
from corral.domain.runs import outcome
from corral.domain.runs.model import Diagnosis, Launch, Run
from corral.kernel.errors import Conflict, NotFound, StoreUnavailable
from corral.kernel.exit_status import ExitStatus
from corral.services.runs.recovery import measure_attempt_ms
from corral.supervisor.agent_io import AgentIO
from corral.supervisor.attempt import AgentAttempt
from corral.supervisor.child import CannotStart
from corral.supervisor.control_permissions import ControlPermissions
from corral.supervisor.control_server import ControlServer
from corral.supervisor.event_loop import EventLoop
from corral.supervisor.launch_plan import LaunchPlan
from corral.supervisor.lease import RunLease
from corral.supervisor.limits import RunLimits
from corral.supervisor.output import OutputWriter

if TYPE_CHECKING:
    from corral.api import Corral

MAX_POLL_SECONDS = 5.0  # between two checks of a parked run
WATCHER_SECONDS = 2.0  # maximum wait for the caller to attach


class NextStep(Enum):
    """What follows the end of an attempt."""

    FINISH = auto()  # the run ends
    RESTART = auto()  # the next attempt; its back-off is over
    START_PARKED = auto()  # the next attempt of a parked run; the provider's quota is reset
    LEAVE = auto()  # the parked run stays queued, or another supervisor has it


class Supervisor:
    """One run, from its start or adoption to its end."""

    def __init__(self, store: "Corral", run: Run, launch: Launch, plan: LaunchPlan) -> None:
        self._store = store
        self._launch = launch
        self._plan = plan
        self.folder: Path = plan.folder
        self._lease = RunLease(store, run, secrets=self.secrets, is_pinned=launch.host is not None)
        self._output = OutputWriter(self.folder, cap=launch.max_output_bytes, secrets=self.secrets)
        self._control = ControlServer(self.folder, self, ControlPermissions(store, run, self))
        self._limits = RunLimits(self._lease, launch, plan)
        self._loop = EventLoop(self._lease, self._output, self._control, self._limits)
        self._attempt: AgentAttempt | None = None
        """The current attempt; None between two attempts."""
        self._diagnosis: Diagnosis | None = None
        """The transition to record if the exit status of an adopted agent is unknown."""

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
            self._loop.hold_output(WATCHER_SECONDS)

    def adopt(self, diagnosis: Diagnosis | None = None) -> None:
        """Take over a run whose supervisor is gone; the agent is alive, or ended meanwhile.

        `diagnosis` is the transition that a recovery chose for an agent that is gone. Raises
        Conflict when another supervisor was faster.
        """
        self._diagnosis = diagnosis
        self._attempt = AgentAttempt.adopt(
            self._lease, self._output, self._plan, on_output=self._control.send_output
        )
        # Not the age of the run, which includes the attempts before.
        age_ms = measure_attempt_ms(self.run)
        if age_ms is None:
            age_ms = max(0, self._store.now() - (self.run.started_at or 0))
        self._attempt.started_at = time.monotonic() - age_ms / 1_000
        self._open_control()

    def supervise(self) -> Run:
        """Supervise the run until it has ended, or another supervisor has it; return the run."""
        attempt = self._attempt
        assert attempt is not None, "requires start() or adopt()"
        self._lease.record_environment(self._describe_environment)
        attempt.record_size()
        while True:
            exit_status = self._watch_attempt(attempt)
            if self._lease.is_replaced:
                return self.run
            quick_failures = self._count_quick_failures(attempt, exit_status)
            self._loop.renew_lease(attempt)  # reads a stop request, which rules out a restart
            match self._wait_for_next_step(attempt, exit_status, quick_failures):
                case NextStep.FINISH:
                    return self._finish(exit_status)
                case NextStep.LEAVE:
                    return self._read_run()
                case NextStep.RESTART:
                    previous: ExitStatus | None = exit_status
                case NextStep.START_PARKED:
                    previous = None  # a parked run is queued and acquired like a new one
            try:
                attempt = self._start_attempt(previous, quick_failures)
            except (CannotStart, Conflict):
                return self._read_run()

    def _describe_environment(self) -> dict[str, Any]:
        from corral.supervisor.environment import describe_environment  # after the agent started

        return describe_environment(self._plan)

    def _read_run(self) -> Run:
        """Return the run as it is stored now: the caller cleans up if it has ended.

        Returns it as last read if it was deleted, or if the store is unavailable.
        """
        with suppress(NotFound, StoreUnavailable):
            return self._store.runs.get(self.run.id)
        return self.run

    def interrupt(self) -> None:
        """End the run because this process received SIGTERM. Called from the signal handler."""
        self._loop.interrupt()

    def _open_control(self) -> None:
        self._control.open()
        # A stop that was requested before the socket existed is only in the store: read it now.
        self._lease.next_beat = time.monotonic()

    def _start_attempt(self, previous: ExitStatus | None, quick_failures: int = 0) -> AgentAttempt:
        """Start the next attempt; `previous` is the end of the one before.

        Raises Conflict when another supervisor has the run, and CannotStart after the end of the
        run was recorded.
        """
        try:
            attempt = AgentAttempt.fork(
                self._lease,
                self._output,
                self._plan,
                previous=previous,
                quick_failures=quick_failures,
                on_output=self._control.send_output,
            )
            self._attempt = attempt
            attempt.execute()
        except CannotStart as error:
            self._finish(ExitStatus(exit_code=error.exit_code, reason=error.reason))
            raise
        self._lease.mark_launched()
        return attempt

    def _watch_attempt(self, attempt: AgentAttempt) -> ExitStatus:
        """Watch the agent until it has ended; return its end after all output was read.

        The end is unknown if another supervisor has the run.
        """
        exit_status = self._wait_for_exit(attempt)
        while not (exit_status.is_known or self._lease.is_replaced) and attempt.is_alive:
            # Only the guard was killed. The agent continues; its exit status will be unknown.
            attempt.watch_without_guard()
            exit_status = self._wait_for_exit(attempt)
        if self._lease.is_replaced:
            return exit_status
        survivors = attempt.terminate_leftovers()
        attempt.close()
        may_have_survivors = not exit_status.is_known and not process_marks.is_supported()
        exit_status = exit_status._replace(
            survivors=survivors, may_have_survivors=may_have_survivors
        )
        return attempt.interpret_end(exit_status, self._control.forwarded_signals)

    def _wait_for_exit(self, attempt: AgentAttempt) -> ExitStatus:
        self._loop.watch(attempt)
        return ExitStatus() if self._lease.is_replaced else attempt.read_exit()

    def _finish(self, exit_status: ExitStatus) -> Run:
        """Record the end of the run and disconnect all clients."""
        if self._plan.worktree_sandbox is not None:
            self._plan.worktree_sandbox.close()
        self._lease.record_end(exit_status, self._output.count_bytes(), self._diagnosis)
        self._control.end({"exit_code": self.run.exit_code, "signal": self.run.signal})
        return self.run

    # -- between two attempts ------------------------------------------------------------------

    def _count_quick_failures(self, attempt: AgentAttempt, exit_status: ExitStatus) -> int:
        lasted_ms = int((time.monotonic() - attempt.started_at) * 1_000)
        return outcome.count_quick_failures(self.run.quick_failures, exit_status, lasted_ms)

    def _wait_for_next_step(
        self, attempt: AgentAttempt, exit_status: ExitStatus, quick_failures: int
    ) -> NextStep:
        """Decide what follows an attempt, and wait until the next attempt is due.

        A run that failed because of the provider's quota is parked. If it was stopped or taken over
        concurrently, it is not, and the restart policy decides.
        """
        if self._has_hit_quota(attempt, exit_status) and self._park(attempt):
            return NextStep.START_PARKED if self._wait_for_quota() else NextStep.LEAVE
        if not self._can_restart(exit_status, quick_failures):
            return NextStep.FINISH
        return NextStep.RESTART if self._wait_before_restart(quick_failures) else NextStep.FINISH

    def _has_hit_quota(self, attempt: AgentAttempt, exit_status: ExitStatus) -> bool:
        # Only an agent that failed by itself failed because of the quota.
        failed_by_itself = exit_status.exit_code != 0 and self._lease.stop_reason is None
        return attempt.agent_io.status.quota_limit is not None and failed_by_itself

    def _can_restart(self, exit_status: ExitStatus, quick_failures: int) -> bool:
        if exit_status.finished_work or exit_status.signal_was_forwarded:
            return False
        return outcome.should_restart(
            exit_status,
            stop_reason=self._lease.stop_reason,
            attempts=self.run.attempts,
            max_restarts=self._launch.max_restarts,
            quick_failures=quick_failures,
        )

    def _park(self, attempt: AgentAttempt) -> bool:
        """Queue the run until the quota is reset; return False if it was stopped or taken over."""
        limit = attempt.agent_io.status.quota_limit
        assert limit is not None
        return self._lease.park(limit)

    def _wait_before_restart(self, quick_failures: int) -> bool:
        """Wait for the back-off before the next attempt; return False if the run was stopped."""
        until = time.monotonic() + outcome.compute_backoff_ms(quick_failures) / 1_000
        self._attempt = None
        while time.monotonic() < until and self._lease.stop_reason is None:
            self._loop.wait(until - time.monotonic())
        return self._lease.stop_reason is None

    def _wait_for_quota(self) -> bool:
        """Wait until the provider's quota is reset; return False if the run is no longer ours.

        The run is queued meanwhile: if this process dies, another one starts the run in time.
        """
        self._attempt = None
        while (left := self.run.due_at - self._store.now()) > 0:
            if self._loop.is_interrupted:
                return False
            self._loop.wait(min(left / 1_000, MAX_POLL_SECONDS))
            try:
                if self._store.runs.get(self.run.id).fence != self.run.fence:
                    return False
            except NotFound:
                return False
            except StoreUnavailable:
                pass  # the run stays queued, and is started when its time has come
        return True

    # -- called by the control server (`ControlTarget`) ----------------------------------------

    @property
    def agent_process(self) -> ProcessIdentity | None:
        return self._attempt.agent_process if self._attempt is not None else None

    @property
    def agent_io(self) -> AgentIO:
        return self._attempt.agent_io if self._attempt is not None else AgentIO()

    @property
    def recent_output(self) -> bytes:
        """The end of the output so far, for a client that attaches now."""
        return self._output.recent

    def type_in(self, data: bytes) -> bool:
        """Type into the agent's terminal; return False if it has none."""
        return self._attempt is not None and self._attempt.type_in(data)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the agent's terminal to that of a client."""
        if self._attempt is not None:
            self._attempt.resize(rows, columns)

    def check_stop(self, grace_period_ms: int | None) -> None:
        """Read the stop request from the store now; `grace_period_ms` replaces the grace period."""
        if grace_period_ms is not None:
            self._limits.set_grace_period(self._attempt, grace_period_ms)
        self._loop.renew_lease(self._attempt)
