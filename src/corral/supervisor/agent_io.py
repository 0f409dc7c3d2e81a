"""What an agent says of itself, in whatever way it speaks: that goes into the store.

    Voice          says nothing: a plain command
    StreamVoice    structured lines in its output (`stream.py`)
    ScreenVoice    only a screen, drawn for a person (`screen.py`)
    AcpVoice       the Agent Client Protocol over its input and output (`acp.py`)

Turns have keys made of the run, the attempt and their place, so what is read again, by a keeper
that took over, adds nothing twice.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from corral.adapters.providers.facts import (
    Asked,
    Denied,
    Fact,
    Finished,
    LimitReached,
    Logged,
    Planned,
    Said,
    SessionNamed,
    Used,
)
from corral.adapters.redaction import without_secrets
from corral.domain.runs.model import Attention, Dialog, Run
from corral.kernel.clock import SystemClock
from corral.kernel.errors import CorralError, StoreUnavailable
from corral.supervisor.budget import MOMENT, BudgetWatch
from corral.supervisor.retry import insist

if TYPE_CHECKING:
    from corral.api import Corral
    from corral.domain.charges.model import Charge
    from corral.supervisor.transcript import FollowedRecord

SHORTEST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
PATIENCE = 15 * 60.0  # and once it has ended, as for the end itself
MOST_WAITING = 1_000  # facts; the rest stays in the output until then

Log = Callable[[str, str, dict[str, Any] | None], None]
Reply = Callable[[dict[str, Any]], None]


class Voice:
    """One attempt's agent, as far as it can be understood."""

    pause: float | None = None
    """How soon `look` wants to be called again; None: it need not be."""

    def __init__(self) -> None:
        self.attention: Attention | None = None
        self.dialog: Dialog | None = None
        """The open question, while `attention` is NEEDS_INPUT and the question is known."""
        self.limit: LimitReached | None = None
        self.finished: Finished | None = None
        self.over_budget: str | None = None
        """Why the run must stop; None: within budget."""
        self.denied: dict[str, str] = {}
        """The denied tools, by call."""
        self.record: FollowedRecord | None = None
        """The record that the CLI itself keeps of the conversation."""
        self.recorder: Recorder | None = None
        """The recorder of its stream, if it has one."""
        self.is_working = False
        """Whether it shows that it works, though nothing moves."""
        self.is_starting = False
        """Whether its interface has not appeared yet: silence is then not idleness."""
        self.is_done = False
        """Whether it has done what it was told and only waits to be let go."""

    def feed(self, data: bytes) -> None:
        """What passed through the keeper's hands."""

    def resize(self, rows: int, columns: int) -> None:
        """Its terminal has another size."""

    def look(self) -> bool:
        """Take in what is new; whether there was anything."""
        return False

    def follow(self, agent: int | None) -> bool:
        """Record the new items of the CLI's own record; returns whether there were any."""
        if self.record is None:
            return False
        found = self.record.look(agent)
        recorder = self.recorder or self.record.recorder
        if self.is_working or (self.recorder is None and not self.record.is_screened):
            recorder.budget.notice_activity()
        if self.recorder is None:
            recorder.look_at_budget(self.record.pending)
        return found

    def pending_in_record(self) -> list[Used]:
        """Usage in the record that is not charged yet."""
        return self.record.pending if self.record is not None else []

    def close_record(self) -> None:
        """Close the record after the agent has ended and its stream was read to the end."""
        if self.record is not None:
            self.record.close()

    def send(self, text: str, *, enter: bool, dialog: str | None, reply: Reply) -> bool:
        """Pass on what a person sends, and call `reply` with the outcome, now or later.

        `dialog` is the id of the dialog that the text is meant for. False: this agent has no
        interface of its own, so the caller types the text into its terminal.
        """
        return False

    def quit(self, command: str, failed: Callable[[], None]) -> bool:
        """Ask an idle agent to quit, with a command of its interface. `failed` is called when the
        interface does not accept it. False: the agent cannot be asked now."""
        return False

    def close(self) -> None:
        """It has ended, however it ended."""


class Recorder:
    """Facts into the store: turns, charges, names, log lines."""

    def __init__(
        self,
        store: "Corral",
        run: Run,
        voice: Voice,
        log: Log,
        *,
        secrets: Sequence[str] = (),
        budget: BudgetWatch | None = None,
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._run = run
        self._voice = voice
        self._log = log
        self._count = 0
        self._place = ""
        self._at: int | None = None
        self._waiting: deque[tuple[str, int | None, Fact]] = deque()
        self._next_try = 0.0
        self._charged: Used | None = None
        self._charge_added: Charge | None = None
        self._session: str | None = None
        self._model: str | None = run.model
        self.budget = budget or BudgetWatch(store, run, voice)
        self._is_raw = store.runs.launch_of(run.id).raw

    @property
    def waits(self) -> bool:
        """Whether something waits for a store that is away."""
        return bool(self._waiting)

    @property
    def is_behind(self) -> bool:
        """Whether so much waits for the store that no more should be read."""
        return len(self._waiting) >= MOST_WAITING

    def take(
        self,
        facts: Sequence[Fact],
        *,
        place: str | None = None,
        at: int | None = None,
        is_whole_place: bool = False,
    ) -> None:
        """Record the facts in order. A fact that cannot be recorded does not end the run: it is
        logged, and the output still has it.

        `place` identifies them in the output or in a record, so that reading them again adds
        nothing; `is_whole_place`: alone, also across attempts. `at` is their own time.
        """
        for nth, fact in enumerate(facts):
            self._count += 1
            key = f"{self._run.attempts}:{self._count if place is None else f'{place}.{nth}'}"
            clean = without_secrets(fact, self._secrets)
            self._notice(clean)
            self._waiting.append((str(place) if is_whole_place else key, at, clean))
        self.pass_on()

    def pass_on(self) -> None:
        """Keep what waits. A store that is away is not waited for: a keeper that stands still here
        would not see that its lease has run out, and its agent would go on beside another's."""
        if not self._waiting or time.monotonic() < self._next_try:
            return
        try:
            with self._store.waiting_at_most(MOMENT):
                self._keep_all()
        except StoreUnavailable:
            self._next_try = time.monotonic() + LONGEST_PAUSE

    def finish(self) -> None:
        """The agent has ended: now the store is waited for, and what it said and spent is worth
        that."""
        try:
            insist(self._keep_all, patience=PATIENCE, longest_pause=LONGEST_PAUSE)
        except StoreUnavailable as error:
            self._log("warn", f"Not kept: {error.message}", {"facts": len(self._waiting)})
            self._waiting.clear()

    def _keep_all(self) -> None:
        while self._waiting:
            self._place, self._at, fact = self._waiting[0]
            try:
                self._take(fact)
            except StoreUnavailable:
                raise
            except CorralError as error:
                self._log("warn", f"Not kept: {error.message}", {"fact": type(fact).__name__})
            self._waiting.popleft()

    def _notice(self, fact: Fact) -> None:
        """What the keeper itself goes by, whether the store is there or not."""
        if isinstance(fact, LimitReached):
            self._voice.limit = fact
        elif isinstance(fact, Finished):
            self._voice.finished = fact
        elif isinstance(fact, Used):
            self._notice_usage(fact)
        elif isinstance(fact, Said):
            self.budget.notice_activity()
        elif isinstance(fact, SessionNamed) and self._voice.record is not None:
            self._voice.record.name(fact.id)

    def _notice_usage(self, used: Used) -> None:
        """A cancelled prompt reports zero tokens, which says nothing of its requests."""
        tokens = used.input + used.output + used.cache_read + used.cache_write
        if tokens or used.cost_micros:
            self.budget.is_measured = True
            if self._voice.record is not None:
                self._voice.record.settle(SystemClock().now())

    def look_at_budget(self, pending: Sequence[Used]) -> None:
        """Stop the run when a budget that covers it is spent, counting usage that is `pending`."""
        self.budget.check(pending)

    def _take(self, fact: Fact) -> None:
        match fact:
            case Said():
                self._say(fact)
            case Used():
                self._charge(fact)
            case SessionNamed():
                self._name(fact)
            case LimitReached():
                self._log("warn", fact.message, {"reset_at": fact.reset_at})
            case Denied():
                self._deny(fact)
            case Asked():
                self._log("info", f"It asks: {fact.title}", {"tool": fact.tool})
            case Planned():
                run = self._run
                self._store.plans.set(
                    fact.steps, agent=run.agent_id, run=run.id, project_id=run.project_id
                )
            case Logged():
                self._log(fact.level, fact.message, fact.metadata)

    def link(self, fact: SessionNamed, *, title: str | None) -> None:
        """Link the run with the session that its CLI records. For a command typed by the user, the
        session is opened here, or found if it exists."""
        if self._is_raw:
            with suppress(CorralError), self._store.waiting_at_most(MOMENT):
                run = self._run
                session = self._store.sessions.open(
                    project=run.project_id,
                    title=title,
                    provider=run.provider,
                    provider_session=fact.id,
                )
                self._run = self._store.runs.link_session(run, session.id)
        self.take([fact])

    def _deny(self, fact: Denied) -> None:
        """Count each denied call once, whatever reports it."""
        denied = self._voice.denied
        denied.setdefault(fact.call or f"#{len(denied)}", fact.tool)
        counts: dict[str, int] = {}
        for tool in denied.values():
            counts[tool] = counts.get(tool, 0) + 1
        self._store.runs.count_denials(self._run, counts)

    def _name(self, fact: SessionNamed) -> None:
        run = self._run
        if run.session_id is not None:
            self._store.sessions.set_provider_session(run.session_id, run.provider, fact.id)
        self._session = fact.id
        self._model = fact.model or self._model
        self._store.runs.tell(run, model=fact.model, provider_version=fact.version)

    def _model_in_record(self) -> str | None:
        """Some streams do not say their model; what the CLI itself keeps of the talk does."""
        record = self._voice.record
        if self._session is None or record is None:
            return None
        return record.model(self._session)

    def _say(self, fact: Said) -> None:
        if self._run.session_id is None:
            return
        key, run, sessions = f"{self._run.id}:{self._place}", self._run.id, self._store.sessions
        if self._at is None:
            sessions.append(self._run.session_id, **asdict(fact), key=key, run=run)
        else:
            from corral.domain.sessions.model import NewTurn  # a plain run has no turns

            turn = NewTurn(**asdict(fact), key=key, run=run, at=self._at)
            sessions.append_many(self._run.session_id, [turn])

    def _charge(self, used: Used) -> None:
        run, reported = self._run, used
        if used.model is None:
            self._model = self._model or self._model_in_record()
            used = replace(used, model=self._model)
        if reported is not self._charged:  # else only what follows was cut short
            self._charge_added = self._store.charges.add(
                used,
                run_id=run.id,
                session_id=run.session_id,
                project_id=run.project_id,
                agent_id=run.agent_id,
                provider=run.provider,
                at=None if self._at is None else min(self._at, self._store.now()),
            )
            self._charged = reported
        is_priced = self._price(self._charge_added)
        total = self._store.charges.total(f"run:{run.id}")
        self._store.runs.tell(
            run, model=used.model, tokens=total.tokens, cost_micros=total.cost_micros
        )
        self.budget.compare()
        if not is_priced:
            self.budget.refuse_unknown_price(used.model)

    def _price(self, charge: "Charge | None") -> bool:
        """Price a charge without a cost by its tokens; False when the price is unknown."""
        if charge is None or charge.cost_micros is not None:
            return True
        rates = self.budget.rates_of(charge.model)
        if rates is not None:
            from corral.domain.charges.model import Price

            self._store.charges.set_prices([Price(charge.id, rates.cost(charge), rates.version)])
        return rates is not None
