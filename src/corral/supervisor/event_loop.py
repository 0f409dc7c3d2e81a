"""The event loop of one run: file descriptors and deadlines, in one thread."""

import os
import select
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from corral.domain.runs.model import Dialog, StopKind
from corral.supervisor.resource_usage import ResourceMeter

if TYPE_CHECKING:
    from corral.supervisor.attempt import AgentAttempt
    from corral.supervisor.control_server import ControlServer
    from corral.supervisor.lease import RunLease
    from corral.supervisor.limits import RunLimits
    from corral.supervisor.output import OutputWriter

TRIM_SECONDS = 2.0  # between two checks of the output cap


class EventLoop:
    """Copies output, serves clients, renews the lease and enforces limits, as each becomes due."""

    def __init__(
        self,
        lease: "RunLease",
        output: "OutputWriter",
        control: "ControlServer",
        limits: "RunLimits",
    ) -> None:
        self._lease = lease
        self._output = output
        self._control = control
        self._limits = limits
        self._usage = ResourceMeter()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self.is_interrupted = False
        """Whether this process received SIGTERM."""
        self._watcher_deadline: float | None = None
        self._next_trim = 0.0

    def interrupt(self) -> None:
        """Stop the run as soon as possible. Called from a signal handler."""
        self.is_interrupted = True
        with suppress(OSError):
            os.write(self._wake_writer, b".")

    def hold_output(self, seconds: float) -> None:
        """Leave the output in the terminal until the first client attaches, or time is up.

        The client then sees the output from the beginning.
        """
        self._watcher_deadline = time.monotonic() + seconds

    def watch(self, attempt: "AgentAttempt") -> None:
        """Process events until the agent has ended, or the run has another supervisor."""
        while not self._process_events(attempt, self._seconds_until_next_deadline(attempt)):
            pass

    def wait(self, seconds: float) -> None:
        """Wait for at most `seconds` between two attempts, and handle the events of that time."""
        self._process_events(None, seconds)

    def renew_lease(self, attempt: "AgentAttempt | None") -> None:
        """Renew the lease and read whether the run is to stop."""
        agent_process = attempt.agent_process if attempt is not None else None
        self._lease.renew(agent_process, self._output.count_bytes(), self._usage)

    def _process_events(self, attempt: "AgentAttempt | None", seconds: float) -> bool:
        """Wait for at most `seconds`, and handle all events that are ready or due.

        Returns True when the attempt has ended, or the run has another supervisor.
        """
        poll = select.poll()
        watched = None if self._is_holding_output() else attempt
        exit_fd = watched.exit_fd if watched is not None else None
        for descriptor in (exit_fd, self._wake_reader):
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        if watched is not None:
            watched.register(poll)
        self._control.register(poll)
        ready = poll.poll(max(0, int(seconds * 1_000)))
        descriptors = {descriptor for descriptor, _ in ready}
        if watched is not None:
            watched.handle(descriptors)
        self._control.handle(ready)
        if self._wake_reader in descriptors:
            os.read(self._wake_reader, 64)
        self._handle_deadlines(attempt)
        if self._lease.is_replaced:
            return True
        if exit_fd is not None:
            return exit_fd in descriptors
        # Without pidfd, the exit of a process that is not our child can only be polled.
        return watched is not None and not watched.is_alive

    def _is_holding_output(self) -> bool:
        if self._watcher_deadline is None:
            return False
        if self._control.has_watchers or time.monotonic() >= self._watcher_deadline:
            self._watcher_deadline = None
        return self._watcher_deadline is not None

    def _seconds_until_next_deadline(self, attempt: "AgentAttempt") -> float:
        now = time.monotonic()
        deadlines = [
            self._lease.next_beat,
            self._usage.next_poll,
            self._next_trim,
            *self._limits.next_checks(attempt, now),
            *attempt.next_polls(now),
        ]
        if self._control.suspend_check_at is not None:
            deadlines.append(self._control.suspend_check_at)
        return min(deadlines) - now

    def _handle_deadlines(self, attempt: "AgentAttempt | None") -> None:
        now = time.monotonic()
        check_at = self._control.suspend_check_at
        if check_at is not None and now >= check_at:
            self._control.check_suspended()
        if now >= self._next_trim:
            self._next_trim = now + TRIM_SECONDS
            self._output.trim()
        if now >= self._lease.next_beat:
            self.renew_lease(attempt)
        if now >= self._usage.next_poll:
            agent_process = attempt.agent_process if attempt is not None else None
            self._lease.record_resource_sample(self._usage.measure(agent_process))
        if self.is_interrupted and self._lease.stop_reason is None and not self._lease.is_parked:
            self._lease.request_stop(StopKind.INTERRUPTED)
        if attempt is not None and not self._lease.is_replaced:
            attempt.poll_agent()
            self._record_attention(attempt)
            self._limits.enforce(attempt, now)

    def _record_attention(self, attempt: "AgentAttempt") -> None:
        """Record whether the agent needs a person, if that or its question has changed."""
        run, attention, dialog = (
            self._lease.run,
            attempt.agent_io.status.attention,
            attempt.agent_io.status.dialog,
        )
        if attention != run.attention or _get_dialog_id(dialog) != _get_dialog_id(run.dialog):
            self._lease.set_attention(attention, dialog)


def _get_dialog_id(dialog: Dialog | None) -> str | None:
    return None if dialog is None else dialog.id
