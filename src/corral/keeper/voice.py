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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from corral.adapters.calls import call_and_wait
from corral.adapters.providers.facts import (
    Asked,
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
from corral.keeper.insisting import insist
from corral.kernel.errors import CorralError, StoreUnavailable
from corral.rooms.runs.model import Attention, Dialog, Run

if TYPE_CHECKING:
    from corral.library import Corral

SHORTEST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
MOMENT = 0.5  # seconds for which a store that is away is waited for while the agent is at work
PATIENCE = 15 * 60.0  # and once it has ended, as for the end itself
MOST_WAITING = 1_000  # facts; the rest stays in the output until then
BETWEEN_BUDGETS = 10.0  # seconds between two looks at what is not charged yet

Log = Callable[[str, str, dict[str, Any] | None], None]
Reply = Callable[[dict[str, Any]], None]


class Voice:
    """One attempt's agent, as far as it can be understood."""

    pause: float | None = None
    """How soon `look` wants to be called again; None: it need not be."""

    def __init__(self) -> None:
        self.attention: Attention | None = None
        self.dialog: Dialog | None = None
        """What it asks, while `attention` is NEEDS_INPUT and the question is known."""
        self.limit: LimitReached | None = None
        self.finished: Finished | None = None
        self.over_budget = False
        self.is_working = False
        """Whether it shows that it works, though nothing moves."""
        self.is_done = False
        """Whether it has done what it was told and only waits to be let go."""

    def feed(self, data: bytes) -> None:
        """What passed through the keeper's hands."""

    def resize(self, rows: int, columns: int) -> None:
        """Its terminal has another size."""

    def look(self) -> bool:
        """Take in what is new; whether there was anything."""
        return False

    def send(self, text: str, *, enter: bool, dialog: str | None, reply: Reply) -> bool:
        """Pass on what a person sends, and call `reply` with the outcome, now or later.

        `dialog` is the id of the dialog that the text is meant for. False: this agent has no
        interface of its own, so the caller types the text into its terminal.
        """
        return False

    def quit(self, command: str, failed: Callable[[], None]) -> bool:
        """Ask an idle agent to end, by a command of its interface; `failed` is called when the
        interface does not take it. False when it cannot be asked now."""
        return False

    def close(self) -> None:
        """It has ended, however it ended."""


class Recorder:
    """Facts into the store: turns, charges, names, log lines."""

    def __init__(
        self, store: "Corral", run: Run, voice: Voice, log: Log, *, secrets: Sequence[str] = ()
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._run = run
        self._voice = voice
        self._log = log
        self._count = 0
        self._place = ""
        self._waiting: deque[tuple[str, Fact]] = deque()
        self._next_try = 0.0
        self._charged: Used | None = None
        self._session: str | None = None
        self._model: str | None = run.model
        self._budget = store.runs.launch_of(run.id).budget_micros
        self._next_look = 0.0

    @property
    def waits(self) -> bool:
        """Whether something waits for a store that is away."""
        return bool(self._waiting)

    @property
    def is_behind(self) -> bool:
        """Whether so much waits for the store that no more should be read."""
        return len(self._waiting) >= MOST_WAITING

    def take(self, facts: Sequence[Fact], *, place: str | None = None) -> None:
        """Keep them all, in their order. One that cannot be kept must not end the run: what it was
        is in the output, and the log says so. `place` is where they stand in the output, if that is
        read."""
        for nth, fact in enumerate(facts):
            self._count += 1
            at = f"{self._count}" if place is None else f"{place}.{nth}"
            clean = without_secrets(fact, self._secrets)
            self._notice(clean)
            self._waiting.append((at, clean))
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
            self._place, fact = self._waiting[0]
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

    def look_at_budget(self, pending: Sequence[Used]) -> None:
        """Whether the run's own budget is spent, counting what is used and not yet charged."""
        now = time.monotonic()
        if self._budget is None or not pending:
            return
        if any(used.cost_micros is None for used in pending):
            if now < self._next_look:  # working out prices takes a process of its own
                return
            self._next_look = now + BETWEEN_BUDGETS
        with suppress(CorralError), self._store.waiting_at_most(MOMENT):
            spent = self._store.charges.total(f"run:{self._run.id}").cost_micros or 0
            spent += sum(cost for used in pending if (cost := self._cost(used)) is not None)
            self._voice.over_budget = self._voice.over_budget or spent >= self._budget

    def _cost(self, used: Used) -> int | None:
        if used.cost_micros is not None:
            return used.cost_micros
        from corral.adapters import prices

        question = prices.Question(
            model=used.model or "",
            provider=self._run.provider,
            input=used.input,
            output=used.output,
            cache_read=used.cache_read,
            cache_write=used.cache_write,
        )
        return prices.ask([question])[0].cost_micros

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
            case Asked():
                self._log("info", f"It asks: {fact.title}", {"tool": fact.tool})
            case Planned():
                run = self._run
                self._store.plans.set(
                    fact.steps, agent=run.agent_id, run=run.id, project_id=run.project_id
                )
            case Logged():
                self._log(fact.level, fact.message, fact.metadata)

    def _name(self, fact: SessionNamed) -> None:
        run = self._run
        if run.session_id is not None:
            self._store.sessions.set_provider_session(run.session_id, run.provider, fact.id)
        self._session = fact.id
        self._model = fact.model or self._model
        self._store.runs.tell(run, model=fact.model, provider_version=fact.version)

    def _model_in_record(self) -> str | None:
        """Some streams do not say their model; what the CLI itself keeps of the talk does."""
        from corral.adapters.providers import registry

        if self._session is None:
            return None
        return registry.find(self._run.provider).model(Path.home(), self._session)

    def _say(self, fact: Said) -> None:
        if self._run.session_id is None:
            return
        self._store.sessions.append(
            self._run.session_id,
            fact.role,
            fact.content,
            key=f"{self._run.id}:{self._run.attempts}:{self._place}",
            tool_call_id=fact.tool_call_id,
            tool_name=fact.tool_name,
            arguments=fact.arguments,
            result=fact.result,
            is_error=fact.is_error,
            run=self._run.id,
        )

    def _charge(self, used: Used) -> None:
        run, reported = self._run, used
        if used.model is None:
            self._model = self._model or self._model_in_record()
            used = replace(used, model=self._model)
        if reported is not self._charged:  # else only what follows was cut short
            self._store.charges.add(
                used,
                run_id=run.id,
                session_id=run.session_id,
                project_id=run.project_id,
                agent_id=run.agent_id,
                provider=run.provider,
            )
            self._charged = reported
        if used.cost_micros is None:
            # By a process of its own: the table of prices is large.
            call_and_wait(self._store.address, "charge", "price")
        total = self._store.charges.total(f"run:{run.id}")
        self._store.runs.tell(
            run, model=used.model, tokens=total.tokens, cost_micros=total.cost_micros
        )
        over = self._store.charges.over_budget(
            run.id, project_id=run.project_id, agent_id=run.agent_id
        )
        self._voice.over_budget = self._voice.over_budget or over is not None
