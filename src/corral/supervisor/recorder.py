"""The recorder: writes the facts that an agent reports to the store.

The key of a turn is made of the run, the attempt and its position in the output, so a supervisor
that takes over can read the output again without adding anything twice.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import asdict, replace

from corral.adapters.providers.facts import (
    DenialFact,
    LimitFact,
    LogFact,
    PermissionFact,
    PlanFact,
    ProviderFact,
    ResultFact,
    SessionFact,
    TurnFact,
    UsageFact,
)
from corral.adapters.redaction import redact_record
from corral.domain.runs.model import Run
from corral.kernel.clock import SystemClock
from corral.kernel.errors import CorralError, Held, StoreUnavailable
from corral.supervisor.agent_io import MAX_PAUSE, AgentStatus, Log
from corral.supervisor.budget import BudgetWatch
from corral.supervisor.retry import AGENT_STORE_TIMEOUT, RETRY_TIMEOUT, retry_while_unavailable

if TYPE_CHECKING:
    from corral.api import Corral
    from corral.domain.charges.model import Charge
    from corral.supervisor.transcript import TranscriptFollower

# The maximum number of facts in memory while the store is unavailable. The output keeps the rest.
MAX_PENDING_FACTS = 1_000


class SessionLinkFact(msgspec.Struct, frozen=True):
    """The session that the CLI of a user's command line records; the run is linked to it."""

    id: str
    title: str | None


Fact = ProviderFact | SessionLinkFact


class PendingFact(msgspec.Struct):
    """A fact that is not written yet."""

    key: str
    """Identifies the fact in its run; the same for a supervisor that reads the output again."""
    at: int | None
    """The time of the fact; None: now."""
    fact: Fact
    charge: "Charge | None" = None
    """The charge, once it was added: a retry then repeats only the steps after it."""
    is_charged: bool = False


class Recorder:
    """Writes facts to the store: turns, charges, session ids, log lines.

    Facts are queued and written in order. While the store is unavailable they wait in memory.
    """

    def __init__(
        self,
        store: "Corral",
        run: Run,
        status: AgentStatus,
        log: Log,
        *,
        secrets: Sequence[str] = (),
        budget: BudgetWatch | None = None,
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._run = run
        self._status = status
        self.transcript: TranscriptFollower | None = None
        """The transcript of the agent's CLI, if it is followed."""
        self._log = log
        self._count = 0
        self._pending: deque[PendingFact] = deque()
        self._next_try = 0.0
        self._session: str | None = None
        self._model: str | None = run.model
        self.budget = budget or BudgetWatch(store, run, status)
        self._is_raw = store.runs.get_launch(run.id).raw

    @property
    def has_pending(self) -> bool:
        """Whether facts wait for an unavailable store."""
        return bool(self._pending)

    @property
    def is_behind(self) -> bool:
        """Whether so many facts are pending that no more output should be read."""
        return len(self._pending) >= MAX_PENDING_FACTS

    def record(
        self,
        facts: Sequence[Fact],
        *,
        place: str | None = None,
        at: int | None = None,
        is_unique_across_attempts: bool = False,
    ) -> None:
        """Record the facts in order.

        A fact that the store rejects does not end the run: it is logged, and the output still has
        it. `place` is the position of the facts in the output or in a transcript. It makes
        recording idempotent; with `is_unique_across_attempts`, across attempts too. `at` is the
        time of the facts.
        """
        for nth, fact in enumerate(facts):
            self._count += 1
            key = f"{self._run.attempts}:{self._count if place is None else f'{place}.{nth}'}"
            clean = redact_record(fact, self._secrets)
            self._apply_locally(clean)
            unique_key = str(place) if is_unique_across_attempts else key
            self._pending.append(PendingFact(unique_key, at, clean))
        self.flush()

    def flush(self) -> None:
        """Write the pending facts, if the store is available.

        Bounded wait: blocking here would hide lease expiry, and the agent would continue beside one
        that another machine has started.
        """
        if not self._pending or time.monotonic() < self._next_try:
            return
        try:
            with self._store.server_timeout(AGENT_STORE_TIMEOUT):
                self._write_pending()
        except StoreUnavailable:
            self._next_try = time.monotonic() + MAX_PAUSE

    def finish(self) -> None:
        """Write all pending facts after the agent has ended, waiting for the store."""
        try:
            retry_while_unavailable(self._write_pending, timeout=RETRY_TIMEOUT, max_pause=MAX_PAUSE)
        except StoreUnavailable as error:
            self._log("warn", f"Not recorded: {error.message}", {"facts": len(self._pending)})
            self._pending.clear()

    def _write_pending(self) -> None:
        while self._pending:
            pending = self._pending[0]
            try:
                self._write(pending)
            except StoreUnavailable:
                raise
            except Held:
                pass  # the supervisor that took the run over records the fact
            except CorralError as error:
                self._log(
                    "warn", f"Not recorded: {error.message}", {"fact": type(pending.fact).__name__}
                )
            self._pending.popleft()

    def _apply_locally(self, fact: Fact) -> None:
        """Apply a fact that the supervisor itself acts on, independently of the store."""
        if isinstance(fact, LimitFact):
            self._status.quota_limit = fact
        elif isinstance(fact, ResultFact):
            self._status.result = fact
        elif isinstance(fact, UsageFact):
            self._notice_usage(fact)
        elif isinstance(fact, TurnFact):
            self.budget.notice_activity()
        elif isinstance(fact, SessionFact) and self.transcript is not None:
            self.transcript.set_session(fact.id)

    def _notice_usage(self, used: UsageFact) -> None:
        """Note that usage is measured.

        A cancelled prompt reports zero tokens, which says nothing about its requests.
        """
        tokens = used.input + used.output + used.cache_read + used.cache_write
        if tokens or used.cost_micros:
            self.budget.is_measured = True
            if self.transcript is not None:
                self.transcript.settle(SystemClock().now())

    def check_budget(self, pending: Sequence[UsageFact]) -> None:
        """Stop the run when a budget that covers it is spent, counting usage that is `pending`."""
        self.budget.check(pending)

    def _write(self, pending: PendingFact) -> None:
        match fact := pending.fact:
            case TurnFact():
                self._append_turn(pending, fact)
            case UsageFact():
                self._add_charge(pending, fact)
            case SessionLinkFact():
                self._link_session(fact)
            case SessionFact():
                self._set_session(fact)
            case LimitFact():
                self._log("warn", fact.message, {"reset_at": fact.reset_at})
            case DenialFact():
                self._count_denial(fact)
            case PermissionFact():
                self._log("info", f"The agent asks: {fact.title}", {"tool": fact.tool})
            case PlanFact():
                run = self._run
                self._store.plans.set(
                    fact.steps, agent=run.agent_id, run=run.id, project_id=run.project_id
                )
            case LogFact():
                self._log(fact.level, fact.message, fact.metadata)

    def link(self, fact: SessionFact, *, title: str | None) -> None:
        """Link the run to the session that its CLI records.

        For a command line of the user, the session is opened, or found if it exists. Turns that are
        recorded later wait until the link is written.
        """
        link = [SessionLinkFact(fact.id, title)] if self._is_raw else []
        self.record([*link, fact])

    def _link_session(self, fact: SessionLinkFact) -> None:
        run = self._run
        session = self._store.sessions.open(
            project=run.project_id,
            title=fact.title,
            provider=run.provider,
            provider_session=fact.id,
        )
        self._run = self._store.runs.link_session(run, session.id)

    def _count_denial(self, fact: DenialFact) -> None:
        """Count each denied call once, even if stream and transcript both report it."""
        denied = self._status.denied
        denied.setdefault(fact.call or f"#{len(denied)}", fact.tool)
        counts: dict[str, int] = {}
        for tool in denied.values():
            counts[tool] = counts.get(tool, 0) + 1
        self._store.runs.record_denials(self._run, counts)

    def _set_session(self, fact: SessionFact) -> None:
        run = self._run
        if run.session_id is not None:
            self._store.sessions.set_provider_session(run.session_id, run.provider, fact.id)
        self._session = fact.id
        self._model = fact.model or self._model
        self._store.internal.runs.update_details(
            run, model=fact.model, provider_version=fact.version
        )

    def _find_model_in_transcript(self) -> str | None:
        """Return the model from the CLI's transcript; some streams do not report it."""
        transcript = self.transcript
        if self._session is None or transcript is None:
            return None
        return transcript.find_model(self._session)

    def _append_turn(self, pending: PendingFact, fact: TurnFact) -> None:
        if self._run.session_id is None:
            return
        key, run, sessions = f"{self._run.id}:{pending.key}", self._run.id, self._store.sessions
        if pending.at is None:
            sessions.append(self._run.session_id, **asdict(fact), key=key, run=run)
        else:
            from corral.domain.sessions.model import NewTurn  # a plain run has no turns

            turn = NewTurn(**asdict(fact), key=key, run=run, at=pending.at)
            sessions.append_many(self._run.session_id, [turn])

    def _add_charge(self, pending: PendingFact, used: UsageFact) -> None:
        run = self._run
        if used.model is None:
            self._model = self._model or self._find_model_in_transcript()
            used = replace(used, model=self._model)
        if not pending.is_charged:
            pending.charge = self._store.charges.add(
                used,
                run_id=run.id,
                session_id=run.session_id,
                project_id=run.project_id,
                agent_id=run.agent_id,
                provider=run.provider,
                at=None if pending.at is None else min(pending.at, self._store.now()),
            )
            pending.is_charged = True
        is_priced = self._price(pending.charge)
        total = self._store.charges.total(f"run:{run.id}")
        self._store.internal.runs.update_details(
            run, model=used.model, tokens=total.tokens, cost_micros=total.cost_micros
        )
        self.budget.compare()
        if not is_priced:
            self.budget.refuse_unknown_price(used.model)

    def _price(self, charge: "Charge | None") -> bool:
        """Price a charge without a cost by its tokens; False when the price is unknown."""
        if charge is None or charge.cost_micros is not None:
            return True
        rates = self.budget.find_rates(charge.model)
        if rates is not None:
            from corral.domain.charges.model import ChargePrice

            self._store.internal.charges.set_prices(
                [ChargePrice(charge.id, rates.cost(charge), rates.version)]
            )
        return rates is not None
