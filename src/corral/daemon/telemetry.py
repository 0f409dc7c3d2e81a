"""Export of runs to an OpenTelemetry collector, by the conventions for generative AI.

A run that ended becomes a span below the span of its parent run, with its turns and tool calls as
child spans. Charges become metrics. Only names, times, counts and costs are sent, never prompts,
answers or output. Off unless `otel.enabled` is set. Exports what happens after its start; the
store remains the complete record.
"""

from typing import TYPE_CHECKING

from corral import __version__
from corral.api import Corral
from corral.daemon.loop import BaseLoop
from corral.domain.events.model import Event
from corral.domain.runs.model import TRANSITIONS, Run, RunState
from corral.domain.sessions.model import Turn, TurnRole
from corral.kernel.errors import NotFound

if TYPE_CHECKING:
    from corral.adapters.otel import OtelExporter, Span

PAGE = 200
MAX_SLEEP = 60.0
MAX_TURNS = 1_000  # exported of one run
MAX_PARENTS = 20
END_VERBS = {verb for verb, move in TRANSITIONS.verbs.items() if move.to in TRANSITIONS.terminal}

# Provider names of the semantic conventions.
PROVIDERS = {
    "claude": "anthropic",
    "codex": "openai",
    "gemini": "gcp.gemini",
    "qwen": "alibaba_cloud",
    "copilot": "github",
}


class Telemetry(BaseLoop):
    """Exports new events."""

    name = "telemetry"
    min_interval = 1.0

    def __init__(self) -> None:
        self._cursor: str | None = None
        self._exporter: OtelExporter | None = None

    def next_delay(self, store: Corral) -> float:
        return MAX_SLEEP

    def run_once(self, store: Corral) -> int:
        """Export what happened since the last round; return how many spans and metrics."""
        if not store.settings.get("otel.enabled").value:
            self.close()
            return 0
        if self._exporter is None:
            from corral.adapters.otel import OtelExporter

            self._exporter = OtelExporter(__version__)
            self._cursor = store.events.newest(limit=1).next or "0-0"
        exported = 0
        while (page := store.events.after(self._cursor, limit=PAGE)).items:
            exported += sum(self._export(store, self._exporter, event) for event in page.items)
            self._cursor = page.next
        if exported:
            self._exporter.flush()
        return exported

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.close()
            self._exporter = None

    def _export(self, store: Corral, exporter: "OtelExporter", event: Event) -> bool:
        try:
            if event.kind == "run" and event.verb in END_VERBS:
                run = store.runs.get(event.subject)
                exporter.send(build_spans(store, run))
                _measure_run(exporter, run)
                return True
            if event.kind == "charge" and event.verb == "add":
                _measure_charge(store, exporter, event.subject)
                return True
        except NotFound:
            pass  # deleted by retention meanwhile
        return False


def build_spans(store: Corral, run: Run) -> "list[Span]":
    """Return the spans of a run that ended: the run, its turns and its tool calls."""
    from corral.adapters.otel import Span

    if run.ended_at is None:
        return []
    trace = _find_trace(store, run)
    agent = store.agents.get(run.agent_id).name if run.agent_id else None
    total = store.charges.total(f"run:{run.id}")
    has_failed = run.state not in (RunState.COMPLETED, RunState.CANCELLED)
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
                **_build_common_attributes(run),
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.id": run.agent_id,
                "gen_ai.agent.name": agent,
                "gen_ai.usage.input_tokens": total.input,
                "gen_ai.usage.output_tokens": total.output,
                "error.type": str(run.state) if has_failed else None,
                "process.exit.code": run.exit_code,
                "corral.run.state": str(run.state),
                "corral.run.attempts": run.attempts,
                "corral.cost_micros": run.cost_micros,
                "corral.project.id": run.project_id,
            },
            (run.reason or str(run.state)) if has_failed else None,
        )
    ]
    previous_at = run.started_at or run.created_at
    for turn in _list_turns(store, run):
        span = _make_turn_span(run, turn, trace, min(previous_at, turn.at))
        spans += [span] if span is not None else []
        previous_at = turn.at
    return spans


def _make_turn_span(run: Run, turn: Turn, trace: str, started_at: int) -> "Span | None":
    from corral.adapters.otel import Span

    if turn.role is TurnRole.ASSISTANT:
        name, kind = f"chat {run.model or run.provider}", "client"
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.usage.input_tokens": turn.input_tokens,
            "gen_ai.usage.output_tokens": turn.output_tokens,
        }
    elif turn.role is TurnRole.TOOL:
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
        started_at,
        turn.at,
        {**_build_common_attributes(run), **attributes},
        "the tool failed" if turn.is_error else None,
    )


def _build_common_attributes(run: Run) -> dict[str, str | int | None]:
    return {
        "gen_ai.provider.name": PROVIDERS.get(run.provider, run.provider),
        "gen_ai.request.model": run.model,
        "gen_ai.conversation.id": run.session_id,
        "corral.run.id": run.id,
    }


def _find_trace(store: Corral, run: Run) -> str:
    """Return the root run: all runs that it started, directly or not, share its trace."""
    root, parent = run.id, run.parent_id
    for _ in range(MAX_PARENTS):
        if parent is None:
            break
        root = parent
        try:
            parent = store.runs.get(parent).parent_id
        except NotFound:
            break
    return root


def _list_turns(store: Corral, run: Run) -> list[Turn]:
    if run.session_id is None:
        return []
    # Newest first: the turns of a run are at the end of its session.
    turns: list[Turn] = []
    after: str | None = None
    while len(turns) < MAX_TURNS:
        page = store.sessions.turns(run.session_id, newest=True, after=after)
        turns += [turn for turn in page.items if turn.run_id == run.id]
        after = page.next
        if after is None or page.items[-1].at < run.created_at:
            break
    return turns[::-1]


def _measure_run(exporter: "OtelExporter", run: Run) -> None:
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


def _measure_charge(store: Corral, exporter: "OtelExporter", id: str) -> None:
    charge = store.charges.get(id)
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDERS.get(charge.provider or "", charge.provider),
        "gen_ai.request.model": charge.model,
    }
    input_tokens = charge.input + charge.cache_read + charge.cache_write
    for kind, tokens in (("input", input_tokens), ("output", charge.output)):
        if tokens:
            exporter.measure(
                "gen_ai.client.token.usage",
                "{token}",
                tokens,
                {**attributes, "gen_ai.token.type": kind},
            )
    if charge.cost_micros is not None:
        exporter.measure("corral.cost", "USD", charge.cost_micros / 1_000_000, attributes)
