"""`corral ps`: list runs; and the display of a run."""

import shlex
from typing import Any

import click

from corral.cli import render
from corral.cli.click_classes import Command, paging_options
from corral.cli.columns import Column, Columns, Fields
from corral.cli.context import App, pass_app
from corral.cli.run_refresh import RECOVERY_SECONDS
from corral.domain.runs.model import Run, RunState
from corral.kernel.clock import format_duration
from corral.kernel.money import format_usd


def shown_state(run: Any) -> str:
    """Return the state or the attention that the run needs, and the denied tools."""
    denied = run.denied_text
    return f"{run.attention or run.state}{f', {denied}' if denied else ''}"


def _age(at: int | None) -> str | None:
    return None if at is None else render.format_age(at)


def _exit(run: Run) -> str | None:
    if run.exit_code is not None:
        return str(run.exit_code)
    return f"signal {run.signal}" if run.signal is not None else None


def _agent_or_provider(app: App, run: Run) -> str | None:
    return app.agent_name(run.agent_id) or (None if run.provider == "plain" else run.provider)


def _columns(app: App, *, live: bool) -> Columns:
    columns = [
        Column("ID", lambda run: run.id),
        Column("STATE", shown_state, is_state=True),
        Column("NAME", lambda run: run.name),
        Column("AGENT", lambda run: _agent_or_provider(app, run), drop=4),
        Column(
            "WHAT", lambda run: run.description or None, shrink="truncate", drop=1, replaces="NAME"
        ),
        Column("PID", lambda run: run.pid, drop=5),
        Column("STARTED", lambda run: _age(run.started_at), drop=3),
    ]
    if live:
        return columns
    return [
        *columns,
        Column("ENDED", lambda run: _age(run.ended_at)),
        Column("EXIT", _exit),
        Column("REASON", lambda run: run.reason, shrink="truncate", drop=2),
    ]


def run_fields(app: App) -> Fields:
    """Return the fields of a run for people; `--json` has all fields."""
    return (
        ("id", lambda run: run.id),
        ("name", lambda run: run.name),
        ("state", lambda run: ", ".join(filter(None, (run.state, run.attention, run.denied_text)))),
        ("dialog", lambda run: _dialog(run)),
        ("retry", lambda run: run.retry_command),
        ("reason", lambda run: run.reason or _queue_reason(app, run)),
        ("exit", _exit),
        ("what", lambda run: run.title),
        ("command", lambda run: shlex.join([run.command, *run.args])),
        ("directory", lambda run: run.cwd),
        ("agent", lambda run: _agent(app, run)),
        ("model", lambda run: run.model),
        ("session", lambda run: run.session_id),
        ("started", lambda run: render.format_field("started_at", run.started_at)),
        ("ended", lambda run: render.format_field("ended_at", run.ended_at)),
        ("duration", lambda run: _duration(run)),
        ("tokens", lambda run: None if run.tokens is None else f"{run.tokens:,}"),
        ("cost", lambda run: format_usd(run.cost_micros)),
        ("output", lambda run: f"{run.output_bytes or 0:,} bytes"),
        ("cpu", lambda run: render.format_field("cpu_ms", run.cpu_ms)),
        ("memory", lambda run: f"{run.peak_bytes >> 20:,} MiB" if run.peak_bytes else None),
        ("process", lambda run: f"{run.pid} on {run.host}" if run.pid else None),
    )


def _dialog(run: Run) -> render.MultilineText | None:
    """Return the question of the open dialog, its subject, its options, and how to answer it."""
    dialog = run.dialog
    if dialog is None:
        return None
    name = run.name or run.id
    answer = f"corral send {name} OPTION" if dialog.options else f"corral attach {name}"
    return render.MultilineText(
        (dialog.question, *subject(run), *dialog.options, f"({answer}; dialog {dialog.id})")
    )


def subject(run: Run) -> list[str]:
    """Return the lines that describe the subject of the open dialog, without its question."""
    dialog = run.dialog
    return [line for line in dialog.about if line != dialog.question] if dialog else []


def _queue_reason(app: App, run: Run) -> str | None:
    """Return why a run is queued: it is not due yet, or waits for a slot on a matching node."""
    if run.state is not RunState.QUEUED:
        return None
    if run.due_at > render.now():
        return f"starts {render.format_age(run.due_at)}"
    launch = app.store.runs.get_launch(run.id)
    labels = f" with labels {', '.join(launch.labels)}" if launch.labels else ""
    node = f"on {launch.host}" if launch.host else "on any node"
    return f"waiting for a slot {node}{labels}; see `corral node list`"


def _agent(app: App, run: Run) -> str | None:
    name, version = app.agent_name(run.agent_id), run.agent_version
    return f"{name}, version {version} ({run.provider})" if name else _agent_or_provider(app, run)


def _duration(run: Run) -> str | None:
    if run.started_at is None:
        return None
    ms = (run.ended_at or render.now()) - run.started_at
    return format_duration(ms if ms < 1_000 else ms // 1_000 * 1_000)


@click.command(
    "ps",
    cls=Command,
    examples=["corral ps", "corral ps -a --project .", "corral ps --state failed --limit 10"],
)
@click.option("-a", "--all", "all_", is_flag=True, help="Include runs that have ended.")
@click.option("--project", metavar="DIR", help="Only list runs of this project.")
@click.option(
    "--state", metavar="S", help="Only list runs in this state, such as running, queued or failed."
)
@paging_options
@pass_app
def command(
    app: App,
    all_: bool,
    project: str | None,
    state: str | None,
    after: str | None,
    limit: int,
) -> None:
    """List runs, newest first. Process state is checked before printing."""
    app.store.try_write_before_read("recover", app.store.runs.recover, seconds=RECOVERY_SECONDS)
    only_active = not all_ and state is None
    page = app.store.runs.list(
        project=app.project_id(project),
        state=state,
        live=only_active,
        after=after,
        limit=limit,
    )
    live = all(run.is_live for run in page.items)
    app.show_page(
        page,
        _columns(app, live=live),
        empty="No runs are active. Start one with `corral run`."
        if only_active
        else "No runs match.",
    )
