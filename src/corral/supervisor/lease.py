"""The supervisor's lease on its run in the store: acquire, renew, give back, end.

Every write except log lines carries the fencing token of the lease, so the writes of a replaced
supervisor are rejected. The store may be unavailable for a while; the agent then continues. The end
of the run is retried for `RETRY_TIMEOUT`; heartbeats, samples and log lines are skipped.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.adapters.processes import process
from corral.adapters.processes.process import ProcessIdentity, ProcessUsage
from corral.adapters.redaction import redact_value
from corral.domain.runs import outcome
from corral.domain.runs.model import (
    Attention,
    Diagnosis,
    Dialog,
    ResourceSample,
    Run,
    RunState,
    StopKind,
)
from corral.domain.runs.spec import SupervisedProcess
from corral.domain.runs.supervision import LEASE_MS
from corral.kernel.display_text import shorten
from corral.kernel.errors import Conflict, CorralError, Held, IllegalMove, NotFound
from corral.kernel.exit_status import ExitStatus
from corral.supervisor.retry import RETRY_TIMEOUT, retry_while_unavailable

if TYPE_CHECKING:
    from corral.adapters.providers.facts import LimitFact
    from corral.api import Corral
    from corral.supervisor.resource_usage import ResourceMeter

MAX_HEARTBEAT_SECONDS = 10.0
BEATS_PER_LEASE = 6
LEASE_LOST = "the store was unavailable for longer than the lease"
MAX_RETRY_PAUSE = 5.0  # seconds
DEFAULT_PARK_MS = 5 * 60_000  # if the provider does not report when the quota is reset
MAX_PARK_MS = 8 * 24 * 3_600_000  # a reset time further away is treated as wrong


class RunLease:
    """The lease of one supervisor on one run."""

    def __init__(
        self, store: "Corral", run: Run, *, secrets: Sequence[str] = (), is_pinned: bool = True
    ) -> None:
        """`is_pinned`: the run is pinned to this machine, and no other machine may start it.

        Its agent then continues however long the store is unavailable.
        """
        self._store = store
        self._secrets = secrets
        self._is_pinned = is_pinned
        self._me = process.identify_self()
        self.run = run
        self.stop_reason: str | None = None
        """Why the run must stop; None while it may continue."""
        self.is_replaced = False
        """Whether another supervisor has the same agent now."""
        self.is_parked = False
        """Whether the run is queued until the provider's quota is reset, without an owner."""
        self._is_executed = False
        """Whether the agent's program was executed in the current attempt."""
        self._lease_ms = LEASE_MS
        self._renewed_at = time.monotonic()
        self.is_store_reachable = True
        """Whether the last heartbeat reached the store."""
        self.next_beat = 0.0
        self._schedule_beat()

    def _schedule_beat(self) -> None:
        self.next_beat = time.monotonic() + self._beat_seconds

    @property
    def _beat_seconds(self) -> float:
        return min(MAX_HEARTBEAT_SECONDS, self._lease_ms / BEATS_PER_LEASE / 1_000)

    def _read_lease_length(self) -> None:
        """Use the lease length that the store granted."""
        self._renewed_at = time.monotonic()
        if self.run.lease_until is not None and self.run.seen_at is not None:
            self._lease_ms = self.run.lease_until - self.run.seen_at
        self._schedule_beat()

    @property
    def _owner(self) -> str:
        return self._me.as_owner("supervisor")

    # -- acquire -------------------------------------------------------------------------------

    def acquire(
        self,
        agent_process: ProcessIdentity,
        folder: Path,
        previous: ExitStatus | None,
        quick_failures: int,
    ) -> None:
        """Record `agent_process` as the process of the run's first or next attempt.

        `previous` is the end of the attempt before; None for a queued run. Raises Conflict when
        another supervisor has the run, or it is to stop.
        """
        supervised = SupervisedProcess(
            owner=self._owner,
            host=agent_process.host,
            boot_id=agent_process.boot_id,
            pid=agent_process.pid,
            start_token=agent_process.start_token,
            supervisor_pid=self._me.pid,
            supervisor_token=self._me.start_token,
            folder=str(folder),
        )
        if previous is None:
            self.run = self._store.internal.runs.acquire(self.run.id, supervised)
            self._read_lease_length()
        else:
            self.run = self._store.internal.runs.restart(
                self.run, supervised, previous, quick_failures=quick_failures
            )
        self.is_parked = self._is_executed = False

    def take_over(self) -> ProcessIdentity:
        """Take the run over from a supervisor that is gone; return its agent.

        Raises Conflict when another supervisor was faster.
        """
        run = self.run
        assert run.pid is not None
        assert run.start_token is not None
        self.run = self._store.internal.runs.take_over(
            run,
            owner=self._owner,
            supervisor_pid=self._me.pid,
            supervisor_token=self._me.start_token,
        )
        self._read_lease_length()
        agent_process = ProcessIdentity(self._me.host, self._me.boot_id, run.pid, run.start_token)
        # An agent whose program was not executed exits when its supervisor is gone.
        self._is_executed = process.check(agent_process) is process.Liveness.ALIVE
        return agent_process

    def mark_launched(self) -> None:
        """Record that the agent's program was executed.

        If the store is unavailable, the next heartbeat that reaches it records the launch.
        """
        self._is_executed = True
        self._schedule_beat()
        self._record_launch()

    def _record_launch(self) -> None:
        try:
            with self._store.server_timeout(self._beat_seconds):
                self.run = self._store.internal.runs.launch(self.run)
        except IllegalMove:
            self.next_beat = time.monotonic()  # stopped concurrently; the heartbeat reads it
        except CorralError:
            pass  # `renew` tries again, or gives way to another supervisor

    # -- renew and record ----------------------------------------------------------------------

    def renew(
        self, agent_process: ProcessIdentity | None, output_bytes: int, usage: "ResourceMeter"
    ) -> None:
        """Renew the lease and read whether the run is to stop.

        Bounded wait: blocking here beyond the next heartbeat would hide lease expiry.
        """
        self._schedule_beat()
        if self.is_parked:
            return  # there is no lease to renew
        self.is_store_reachable = True
        try:
            with self._store.server_timeout(self._beat_seconds):
                self.run = self._store.internal.runs.heartbeat(
                    self.run,
                    output_bytes=output_bytes,
                    cpu_ms=usage.cpu_ms,
                    peak_bytes=usage.peak_bytes,
                    lease_ms=self._lease_ms,
                )
        except Conflict:
            with self._best_effort():  # if this fails, the next heartbeat is rejected again
                self._give_way(agent_process)
        except NotFound:
            # The store was replaced by one that does not know the run, so no recovery would ever
            # find the agent. Its output stays in the run folder.
            self.stop_reason = self.stop_reason or "the store no longer has this run"
        except CorralError:
            # The store is unavailable and the lease may expire. If another machine is allowed to
            # start the run then, the agent must not continue here at the same time.
            self.is_store_reachable = False
            silent_ms = (time.monotonic() - self._renewed_at) * 1_000
            if not self._is_pinned and silent_ms >= self._lease_ms:
                self.stop_reason = self.stop_reason or LEASE_LOST
        else:
            self._renewed_at = time.monotonic()
            self._read_stop(self.run)
            if self.run.state is RunState.STARTING and self._is_executed:
                self._record_launch()

    def _read_stop(self, run: Run) -> None:
        if run.state is RunState.STOPPING and self.stop_reason is None:
            self.stop_reason = run.stop_reason or "stopped"

    def _give_way(self, agent_process: ProcessIdentity | None) -> None:
        """Handle a lost lease.

        The agent is left to the new supervisor if that one adopted the same agent. Otherwise the
        agent is stopped, because the run may continue elsewhere.
        """
        current = self._store.runs.get(self.run.id)
        if (current.host, current.boot_id, current.pid, current.start_token) == agent_process:
            self.is_replaced = current.is_live
        self.stop_reason = self.stop_reason or "taken over"

    @contextmanager
    def _best_effort(self) -> Iterator[None]:
        """Bound the wait for the store to one heartbeat, and ignore failures."""
        with suppress(CorralError), self._store.server_timeout(self._beat_seconds):
            yield

    def record_resource_sample(self, usage: ProcessUsage | None) -> None:
        """Record the resource usage of the run's processes; None: it could not be measured."""
        if usage is None or not self.is_store_reachable:
            return
        with self._best_effort():
            sample = ResourceSample(
                self._store.now(), usage.cpu_ms, usage.memory_bytes, usage.processes
            )
            self._store.internal.runs.add_sample(self.run, sample)

    def set_attention(self, attention: Attention | None, dialog: Dialog | None) -> None:
        """Record whether the run needs a person, and its open question."""
        clean = None if dialog is None else redact_value(dialog, self._secrets)
        with self._best_effort():
            self.run = self._store.internal.runs.set_attention(self.run, attention, dialog=clean)
            self._store.internal.alerts.start_delivery()

    def record_size(self, rows: int, columns: int) -> None:
        """Record the size of the run's terminal, if it has changed."""
        if (self.run.screen_rows, self.run.screen_columns) != (rows, columns):
            with self._best_effort():
                self.run = self._store.internal.runs.update_details(
                    self.run, screen_rows=rows, screen_columns=columns
                )

    def record_environment(self, describe: Callable[[], dict[str, Any]]) -> None:
        """Record what `describe` returns: versions, variables, git state. Best effort.

        An environment that cannot be described, because its worktree is gone for example, does not
        end the supervision of the run.
        """
        with suppress(OSError), self._best_effort():
            environment = describe()
            self._store.internal.runs.record_environment(self.run, environment)
            self._store.internal.runs.update_details(
                self.run, provider_version=environment["provider_version"]
            )

    def log(self, level: str, message: str, metadata: dict[str, Any] | None = None) -> None:
        """Add a line to the run's log. Best effort: failures never end the run."""
        with self._best_effort():
            message, metadata = redact_value((message, metadata), self._secrets)
            self._store.outputs.log(self.run.id, level, message, metadata=metadata)

    # -- end -----------------------------------------------------------------------------------

    def request_stop(self, kind: StopKind, reason: str | None = None) -> None:
        """Stop the run because of a limit or a signal; the store is updated first, if reachable.

        Has no effect when another supervisor has the run; the next heartbeat, now due, gives way.
        """
        if (reason := outcome.sanitize(reason)) is not None:
            reason = shorten(redact_value(reason, self._secrets), outcome.MAX_REASON)
        try:
            with self._store.server_timeout(self._beat_seconds):
                self.run = self._store.internal.runs.request_stop(
                    self.run.id, kind=kind, reason=reason, fence=self.run.fence
                )
        except Held:
            self.next_beat = time.monotonic()
            return
        except CorralError:
            pass  # the run is stopped all the same
        self.stop_reason = self.run.stop_reason or reason or outcome.DEFAULT_STOP_REASONS[kind]

    def park(self, limit: "LimitFact") -> bool:
        """Queue the run until the provider's quota is reset.

        Returns False if the run was stopped concurrently, or has another supervisor.
        """
        now = self._store.now()
        until = limit.reset_at or 0
        if not now < until <= now + MAX_PARK_MS:
            until = now + DEFAULT_PARK_MS
        reason = redact_value(limit.message, self._secrets)
        park = partial(self._park, until, reason)
        try:
            retry_while_unavailable(park, timeout=RETRY_TIMEOUT, max_pause=MAX_RETRY_PAUSE)
        except Conflict:
            self.run = self._store.runs.get(self.run.id)
            self._read_stop(self.run)
            return False
        self.is_parked = True
        return True

    def _park(self, until: int, reason: str) -> None:
        self.run = self._store.internal.runs.park(self.run, until=until, reason=reason)

    def record_end(
        self, exit_status: ExitStatus, output_bytes: int, diagnosis: Diagnosis | None
    ) -> None:
        """Record how the run ended, retrying while the store is unavailable.

        `diagnosis` is the transition that a recovery chose, used if the exit status is unknown.
        """
        record = partial(self._record_end, exit_status, output_bytes, diagnosis)
        retry_while_unavailable(record, timeout=RETRY_TIMEOUT, max_pause=MAX_RETRY_PAUSE)

    def _record_end(
        self, exit_status: ExitStatus, output_bytes: int, diagnosis: Diagnosis | None
    ) -> None:
        try:
            if diagnosis is not None and not exit_status.is_known:
                self.run = self._store.internal.runs.end_orphaned(
                    self.run,
                    verb=diagnosis.verb,
                    reason=exit_status.reason or diagnosis.reason,
                    survivors=exit_status.survivors,
                    may_have_survivors=(
                        diagnosis.may_leave_processes and exit_status.may_have_survivors
                    ),
                    output_bytes=output_bytes,
                )
            else:
                self.run = self._store.internal.runs.record_end(
                    self.run, exit_status, output_bytes=output_bytes
                )
        except NotFound:
            return  # the store was replaced by one without this run
        except Held:
            self.run = self._store.runs.get(self.run.id)
