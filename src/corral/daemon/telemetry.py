"""What runs did, told to an OpenTelemetry collector by the conventions for generative AI.

A run that ended is a span, with its turns and tool calls below it, and below its parent run's; each
charge is measured. No prompt, answer or output is sent, only names, times, counts and money. It is
off unless `otel.enabled` is set. It tells of what happens from its start on: the record itself is
the store's.
"""

from typing import TYPE_CHECKING

from corral import __version__
from corral.api import Corral
from corral.daemon.loop import Plain
from corral.domain.events.model import Event
from corral.domain.runs.model import MOVES, Run, RunState
from corral.domain.sessions.model import Role, Turn
from corral.kernel.errors import NotFound

if TYPE_CHECKING:
    from corral.adapters.otel import Exporter, Span

PAGE = 200
LONGEST_SLEEP = 60.0
MOST_TURNS = 1_000  # of one run that are told
MOST_PARENTS = 20
ENDS = {verb for verb, move in MOVES.verbs.items() if move.to in MOVES.terminal}

# The names that the conventions have for providers.
PROVIDERS = {
    "claude": "anthropic",
    "codex": "openai",
    "gemini": "gcp.gemini",
    "qwen": "alibaba_cloud",
    "copilot": "github",
}


class Telemetry(Plain):
    name = "telemetry"
    rest = 1.0

    def __init__(self) -> None:
        self._cursor: str | None = None
        self._exporter: Exporter | None = None

    def pause(self, store: Corral) -> float:
        return LONGEST_SLEEP

    def round(self, store: Corral) -> int:
        """Tell of what happened since the last round; gives back of how many things."""
        if not store.settings.get("otel.enabled").value:
            self.close()
            return 0
        if self._exporter is None:
            from corral.adapters.otel import Exporter

            self._exporter = Exporter(__version__)
            self._cursor = store.events.newest(limit=1).next or "0-0"
        told = 0
        while (page := store.events.after(self._cursor, limit=PAGE)).items:
            told += sum(self._tell(store, self._exporter, event) for event in page.items)
            self._cursor = page.next
        if told:
            self._exporter.flush()
        return told

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.close()
            self._exporter = None

    def _tell(self, store: Corral, exporter: "Exporter", event: Event) -> bool:
        try:
            if event.kind == "run" and event.verb in ENDS:
                run = store.runs.get(event.subject)
                exporter.send(spans_of(store, run))
                _measure_run(exporter, run)
                return True
            if event.kind == "charge" and event.verb == "add":
                _measure_charge(store, exporter, event.subject)
                return True
        except NotFound:
            pass  # forgotten meanwhile
        return False


def spans_of(store: Corral, run: Run) -> "list[Span]":
    """A run, its turns and its tool calls."""
    from corral.adapters.otel import Span

    if run.ended_at is None:
        return []
    trace = _trace_of(store, run)
    agent = store.agents.get(run.agent_id).name if run.agent_id else None
    total = store.charges.total(f"run:{run.id}")
    bad = run.state not in (RunState.COMPLETED, RunState.CANCELLED)
    spans = [
        Span(
            run.id,
            trace,
            run.parent_id,
            f"invoke_agent {agent or run.provider}",
            "internal",
            run.started_at or run.created_at,
            run.ended_at,
            {
                **_common(run),
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.id": run.agent_id,
                "gen_ai.agent.name": agent,
                "gen_ai.usage.input_tokens": total.input,
                "gen_ai.usage.output_tokens": total.output,
                "error.type": str(run.state) if bad else None,
                "process.exit.code": run.exit_code,
                "corral.run.state": str(run.state),
                "corral.run.attempts": run.attempts,
                "corral.cost_micros": run.cost_micros,
                "corral.project.id": run.project_id,
            },
            (run.reason or str(run.state)) if bad else None,
        )
    ]
    before = run.started_at or run.created_at
    for turn in _turns_of(store, run):
        span = _span_of_turn(run, turn, trace, min(before, turn.at))
        spans += [span] if span is not None else []
        before = turn.at
    return spans


def _span_of_turn(run: Run, turn: Turn, trace: str, began_at: int) -> "Span | None":
    from corral.adapters.otel import Span

    if turn.role is Role.ASSISTANT:
        name, kind = f"chat {run.model or run.provider}", "client"
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.usage.input_tokens": turn.input_tokens,
            "gen_ai.usage.output_tokens": turn.output_tokens,
        }
    elif turn.role is Role.TOOL:
        name, kind = f"execute_tool {turn.tool_name or 'unknown'}", "internal"
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": turn.tool_name,
            "gen_ai.tool.call.id": turn.tool_call_id,
            "error.type": "tool_error" if turn.is_error else None,
        }
    else:
        return None
    return Span(
        turn.id,
        trace,
        run.id,
        name,
        kind,
        began_at,
        turn.at,
        {**_common(run), **attributes},
        "the tool failed" if turn.is_error else None,
    )


def _common(run: Run) -> dict[str, str | int | None]:
    return {
        "gen_ai.provider.name": PROVIDERS.get(run.provider, run.provider),
        "gen_ai.request.model": run.model,
        "gen_ai.conversation.id": run.session_id,
        "corral.run.id": run.id,
    }


def _trace_of(store: Corral, run: Run) -> str:
    """The run that it all began with: those that runs started belong to the same trace."""
    first, above = run.id, run.parent_id
    for _ in range(MOST_PARENTS):
        if above is None:
            break
        first = above
        try:
            above = store.runs.get(above).parent_id
        except NotFound:
            break
    return first


def _turns_of(store: Corral, run: Run) -> list[Turn]:
    if run.session_id is None:
        return []
    # The newest come first, and a run's are at the end of its session.
    found: list[Turn] = []
    after: str | None = None
    while len(found) < MOST_TURNS:
        page = store.sessions.turns(run.session_id, newest=True, after=after)
        found += [turn for turn in page.items if turn.run_id == run.id]
        after = page.next
        if after is None or page.items[-1].at < run.created_at:
            break
    return found[::-1]


def _measure_run(exporter: "Exporter", run: Run) -> None:
    if run.ended_at is not None and run.started_at is not None:
        exporter.measure(
            "gen_ai.client.operation.duration",
            "s",
            (run.ended_at - run.started_at) / 1_000,
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.provider.name": PROVIDERS.get(run.provider, run.provider),
                "gen_ai.request.model": run.model,
                "error.type": None if run.state is RunState.COMPLETED else str(run.state),
            },
        )


def _measure_charge(store: Corral, exporter: "Exporter", id: str) -> None:
    charge = store.charges.get(id)
    about = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDERS.get(charge.provider or "", charge.provider),
        "gen_ai.request.model": charge.model,
    }
    read = charge.input + charge.cache_read + charge.cache_write
    for kind, tokens in (("input", read), ("output", charge.output)):
        if tokens:
            exporter.measure(
                "gen_ai.client.token.usage", "{token}", tokens, {**about, "gen_ai.token.type": kind}
            )
    if charge.cost_micros is not None:
        exporter.measure("corral.cost", "USD", charge.cost_micros / 1_000_000, about)
