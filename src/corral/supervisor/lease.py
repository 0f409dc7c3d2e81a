"""The keeper's hold on its run in the store: taken, renewed, given back or ended, always with the
fence that was given.

The store may be away for a while. Then the agent goes on, and what must be said is said when the
store is there again; what need not be said is left out.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.adapters import process
from corral.adapters.process import Identity, Usage
from corral.adapters.redaction import clean_of_secrets
from corral.domain.runs import outcome
from corral.domain.runs.heartbeat import LEASE_MS
from corral.domain.runs.model import Attention, Dialog, Run, RunState, Sample, Stop
from corral.domain.runs.spec import Holding
from corral.kernel.errors import Conflict, CorralError, Held, IllegalMove, NotFound
from corral.kernel.exit_status import End
from corral.supervisor.retry import insist

if TYPE_CHECKING:
    from corral.adapters.providers.facts import LimitReached
    from corral.api import Corral
    from corral.supervisor.usage import Meter

HEARTBEAT = 10.0  # seconds at the most
BEATS = 6  # in the time of a lease
CUT_OFF = "the store was away for longer than its lease"
LONGEST_PAUSE = 5.0
PATIENCE = 15 * 60.0  # seconds for which the end of a run is kept for a store that is away
PARKED_MS = 5 * 60_000  # where the provider does not say when its quota is there again
LONGEST_PARKING_MS = 8 * 24 * 3_600_000  # what is further away is no reset that a provider means


class Hold:
    """One run, as far as the store is concerned."""

    def __init__(
        self, store: "Corral", run: Run, *, secrets: Sequence[str] = (), is_bound: bool = True
    ) -> None:
        """`is_bound`: no other machine may have the run, so it goes on for however long."""
        self._store = store
        self._secrets = secrets
        self._is_bound = is_bound
        me = process.identify(os.getpid())
        assert me is not None
        self._me = me
        self.run = run
        self.stop_wanted: str | None = None
        """Why the run is to end; None: nobody wants it to."""
        self.is_dismissed = False
        """Whether another keeper has the same agent now."""
        self.is_parked = False
        """Whether it waits for its provider's quota, and is nobody's."""
        self._lease_ms = LEASE_MS
        self._heard_at = time.monotonic()
        self.is_heard = True
        """Whether the store was there for the last heartbeat."""
        self.next_beat = 0.0
        self._plan_beat()

    def _plan_beat(self) -> None:
        self.next_beat = time.monotonic() + self._pause

    @property
    def _pause(self) -> float:
        """Between two heartbeats, in seconds."""
        return min(HEARTBEAT, self._lease_ms / BEATS / 1_000)

    def _learn_lease(self) -> None:
        """The store says at the beginning how long its leases are."""
        self._heard_at = time.monotonic()
        if self.run.lease_until is not None and self.run.seen_at is not None:
            self._lease_ms = self.run.lease_until - self.run.seen_at
        self._plan_beat()

    @property
    def _owner(self) -> str:
        return f"keeper:{self._me.host}:{self._me.pid}"

    # -- taking --------------------------------------------------------------------------------

    def take(self, agent: Identity, folder: Path, after: End | None, quick: int) -> None:
        """Take the run with the process that will be its agent, or go on with its next attempt.

        Raises Conflict when another keeper has it, or it is to end.
        """
        holding = Holding(
            owner=self._owner,
            host=agent.host,
            boot_id=agent.boot_id,
            pid=agent.pid,
            start_token=agent.start_token,
            keeper_pid=self._me.pid,
            keeper_token=self._me.start_token,
            folder=str(folder),
        )
        if after is None:
            self.run = self._store.runs.start(self.run.id, holding)
        else:
            self.run = self._store.runs.restart(self.run, holding, after, quick_failures=quick)
        self.is_parked = False
        if after is None:
            self._learn_lease()

    def take_over(self) -> Identity:
        """Take a run from a keeper that is gone; gives back its agent. Raises Conflict."""
        run = self.run
        assert run.pid is not None
        assert run.start_token is not None
        self.run = self._store.runs.take_over(
            run, owner=self._owner, keeper_pid=self._me.pid, keeper_token=self._me.start_token
        )
        self._learn_lease()
        return Identity(self._me.host, self._me.boot_id, run.pid, run.start_token)

    def launched(self) -> None:
        """The agent's program was executed."""
        self._plan_beat()
        try:
            self.run = self._store.runs.launch(self.run)
        except IllegalMove:  # somebody stopped it at this very moment
            self.run = self._store.runs.get(self.run.id)
            self._hear(self.run)
        except CorralError:
            pass  # the next heartbeat says that it runs

    # -- going on ------------------------------------------------------------------------------

    def renew(self, agent: Identity | None, output_bytes: int, meter: "Meter") -> None:
        """Renew the lease; the answer says whether somebody wants the run to end.

        A store that is away is not waited for beyond the next heartbeat: whoever waits here does
        not see that the lease has run out.
        """
        self._plan_beat()
        if self.is_parked:
            return  # it is nobody's, and a refusal would say no more than that
        self.is_heard = True
        try:
            with self._store.waiting_at_most(self._pause):
                self.run = self._store.runs.heartbeat(
                    self.run,
                    output_bytes=output_bytes,
                    cpu_ms=meter.cpu_ms,
                    peak_bytes=meter.peak_bytes,
                    lease_ms=self._lease_ms,
                )
        except Conflict:
            with self._if_there():  # else the next heartbeat is refused again
                self._leave_to_others(agent)
        except NotFound:
            # Another store was put in the place of the one that knew it: nobody would see to an
            # agent that goes on. What it wrote stays in its folder.
            self.stop_wanted = self.stop_wanted or "the store does not know it any more"
        except CorralError:
            # The store is away; the agent goes on, and the lease may run out. Then another machine
            # may have the run, where one is allowed to, and here it must not go on beside it.
            self.is_heard = False
            silent_ms = (time.monotonic() - self._heard_at) * 1_000
            if not self._is_bound and silent_ms >= self._lease_ms:
                self.stop_wanted = self.stop_wanted or CUT_OFF
        else:
            self._heard_at = time.monotonic()
            self._hear(self.run)

    def _hear(self, run: Run) -> None:
        if run.state is RunState.STOPPING and self.stop_wanted is None:
            self.stop_wanted = run.stop_reason or "stopped"

    def _leave_to_others(self, agent: Identity | None) -> None:
        """The run was taken over. The same agent has a new keeper then, and is left in peace; or it
        was given up and may go on elsewhere, and what runs here must not go on beside it."""
        found = self._store.runs.get(self.run.id)
        if (found.host, found.boot_id, found.pid, found.start_token) == agent:
            self.is_dismissed = found.is_live
        self.stop_wanted = self.stop_wanted or "taken over"

    @contextmanager
    def _if_there(self) -> Iterator[None]:
        """What is only said when the store is there; one that is away is waited for no longer than
        with a heartbeat."""
        with suppress(CorralError), self._store.waiting_at_most(self._pause):
            yield

    def keep_usage(self, used: Usage | None) -> None:
        """Write down what the run's processes use, if that can be told."""
        if used is None or not self.is_heard:
            return
        with self._if_there():
            sample = Sample(self._store.now(), used.cpu_ms, used.memory_bytes, used.processes)
            self._store.runs.add_sample(self.run, sample)

    def call_for(self, attention: Attention | None, dialog: Dialog | None) -> None:
        """Record that the run needs a person, and the question that it asks."""
        clean = None if dialog is None else clean_of_secrets(dialog, self._secrets)
        with self._if_there():
            self.run = self._store.runs.call_for(self.run, attention, dialog=clean)
            self._store.alerts.see_to_delivery()

    def tell_size(self, rows: int, columns: int) -> None:
        """Record the size of the run's terminal, if it has changed."""
        if (self.run.screen_rows, self.run.screen_columns) != (rows, columns):
            with self._if_there():
                self.run = self._store.runs.tell(self.run, screen_rows=rows, screen_columns=columns)

    def describe(self, found: dict[str, Any]) -> None:
        """Write down what the run found where it runs."""
        with self._if_there():
            self._store.runs.describe(self.run, found)
            self._store.runs.tell(self.run, provider_version=found["provider_version"])

    def log(self, level: str, message: str, metadata: dict[str, Any] | None = None) -> None:
        """A line in the run's log, for those who look later; it never ends the run."""
        with self._if_there():
            message, metadata = clean_of_secrets((message, metadata), self._secrets)
            self._store.outputs.log(self.run.id, level, message, metadata=metadata)

    # -- ending --------------------------------------------------------------------------------

    def ask_to_stop(self, kind: Stop, reason: str | None = None) -> None:
        """A limit, or a signal, wants the run to end; the store says so first."""
        reason = outcome.storable(reason, outcome.MAX_REASON)
        with self._if_there():
            self.run = self._store.runs.begin_to_stop(self.run.id, kind=kind, reason=reason)
        self.stop_wanted = self.run.stop_reason or reason or outcome.REASONS[kind]

    def park(self, limit: "LimitReached") -> bool:
        """Give the run back until its provider's quota is there again; False when somebody wanted
        it to end at this very moment, or others have it."""
        now = self._store.now()
        until = limit.reset_at or 0
        if not now < until <= now + LONGEST_PARKING_MS:
            until = now + PARKED_MS
        why = clean_of_secrets(limit.message, self._secrets)
        say = partial(self._say_parked, until, why)
        try:
            insist(say, patience=PATIENCE, longest_pause=LONGEST_PAUSE)
        except Conflict:
            self.run = self._store.runs.get(self.run.id)
            self._hear(self.run)
            return False
        self.is_parked = True
        return True

    def _say_parked(self, until: int, reason: str) -> None:
        self.run = self._store.runs.park(self.run, until=until, reason=reason)

    def end(self, end: End, output_bytes: int, verdict: tuple[str, str] | None) -> None:
        """Say how it ended; `verdict` is a recovery's, for an end that nobody saw."""
        say = partial(self._say_end, end, output_bytes, verdict)
        insist(say, patience=PATIENCE, longest_pause=LONGEST_PAUSE)

    def _say_end(self, end: End, output_bytes: int, verdict: tuple[str, str] | None) -> None:
        try:
            if verdict is not None and not end.known:
                verb, reason = verdict
                reason = end.reason or reason
                self.run = self._store.runs.give_up(
                    self.run,
                    verb=verb,
                    reason=reason,
                    survivors=end.survivors,
                    unsure=end.unsure,
                )
            else:
                self.run = self._store.runs.end(self.run, end, output_bytes=output_bytes)
        except NotFound:
            return  # nobody is left to be told
        except Held:
            self.run = self._store.runs.get(self.run.id)
