import shlex
from typing import Any

import click

from corral.cli import render
from corral.cli.app import RECOVERY_SECONDS, App, Columns, Verb, paging, pass_app
from corral.domain.runs.model import Run, RunState
from corral.kernel.clock import format_duration
from corral.kernel.money import format_usd


def shown_state(run: Any) -> str:
    """Return the state or the attention that the run needs, and the denied tools."""
    denied = run.denied_text
    return f"{run.attention or run.state}{f', {denied}' if denied else ''}"


def _age(at: int | None) -> str | None:
    return None if at is None else render.ago(at)


def _exit(run: Run) -> str | None:
    if run.exit_code is not None:
        return str(run.exit_code)
    return f"signal {run.signal}" if run.signal is not None else None


def _who(app: App, run: Run) -> str | None:
    """The agent's own name, or what kind of agent it is."""
    return app.agent_name(run.agent_id) or (None if run.provider == "plain" else run.provider)


def _columns(app: App, *, live: bool) -> Columns:
    columns: Columns = (
        ("ID", lambda run: run.id),
        ("STATE", shown_state),
        ("NAME", lambda run: run.name),
        ("AGENT", lambda run: _who(app, run)),
        ("WHAT", lambda run: run.what or None),
        ("PID", lambda run: run.pid),
        ("STARTED", lambda run: _age(run.started_at)),
        ("ENDED", lambda run: _age(run.ended_at)),
        ("EXIT", _exit),
        ("REASON", lambda run: run.reason),
    )
    return columns[:7] if live else columns


def run_fields(app: App) -> Columns:
    """One run for a person; --json has all that is kept of it."""
    return (
        ("id", lambda run: run.id),
        ("name", lambda run: run.name),
        ("state", lambda run: ", ".join(filter(None, (run.state, run.attention, run.denied_text)))),
        ("asks", lambda run: _dialog(run)),
        ("retry", lambda run: run.retry_command),
        ("reason", lambda run: run.reason or _waits_for(app, run)),
        ("exit", _exit),
        ("what", lambda run: run.title),
        ("command", lambda run: shlex.join([run.command, *run.args])),
        ("directory", lambda run: run.cwd),
        ("agent", lambda run: _agent(app, run)),
        ("model", lambda run: run.model),
        ("session", lambda run: run.session_id),
        ("started", lambda run: render.readable("started_at", run.started_at)),
        ("ended", lambda run: render.readable("ended_at", run.ended_at)),
        ("took", lambda run: _took(run)),
        ("tokens", lambda run: None if run.tokens is None else f"{run.tokens:,}"),
        ("cost", lambda run: format_usd(run.cost_micros)),
        ("output", lambda run: f"{run.output_bytes or 0:,} bytes"),
        ("processor", lambda run: render.readable("cpu_ms", run.cpu_ms)),
        ("memory", lambda run: f"{run.peak_bytes >> 20:,} MiB" if run.peak_bytes else None),
        ("process", lambda run: f"{run.pid} on {run.host}" if run.pid else None),
    )


def _dialog(run: Run) -> render.Lines | None:
    """The question of the dialog that is open, what it is about, and how to answer it."""
    dialog = run.dialog
    if dialog is None:
        return None
    name = run.name or run.id
    how = f"corral send {name} OPTION" if dialog.options else f"corral attach {name}"
    return render.Lines(
        (dialog.question, *subject(run), *dialog.options, f"({how}; dialog {dialog.id})")
    )


def subject(run: Run) -> list[str]:
    """What the open dialog is about, without its question."""
    dialog = run.dialog
    return [line for line in dialog.about if line != dialog.question] if dialog else []


def _waits_for(app: App, run: Run) -> str | None:
    """What a run in line waits for: its time, or a machine that has room and may take it."""
    if run.state is not RunState.QUEUED:
        return None
    if run.due_at > render.now():
        return f"starts {render.ago(run.due_at)}"
    asked = app.store.runs.launch_of(run.id)
    labels = f" with {', '.join(asked.labels)}" if asked.labels else ""
    where = f"on {asked.host}" if asked.host else "on any machine"
    return f"waits for a slot {where}{labels}; `corral node list` shows who may take it"


def _agent(app: App, run: Run) -> str | None:
    name, version = app.agent_name(run.agent_id), run.agent_version
    return f"{name}, version {version} ({run.provider})" if name else _who(app, run)


def _took(run: Run) -> str | None:
    if run.started_at is None:
        return None
    ms = (run.ended_at or render.now()) - run.started_at
    return format_duration(ms if ms < 1_000 else ms // 1_000 * 1_000)


@click.command("ps", cls=Verb)
@click.option("-a", "--all", "all_of_them", is_flag=True, help="Those that are over, too.")
@click.option("--project", metavar="DIR", help="Only those of a project.")
@click.option("--state", metavar="S", help="Only those in a state.")
@paging
@pass_app
def command(
    app: App,
    all_of_them: bool,
    project: str | None,
    state: str | None,
    after: str | None,
    limit: int,
) -> None:
    """List runs, newest first; each was looked at now."""
    app.store.try_upkeep("recover", app.store.runs.recover, seconds=RECOVERY_SECONDS)
    page = app.store.runs.list(
        project=app.project_id(project),
        state=state,
        live=not all_of_them and state is None,
        after=after,
        limit=limit,
    )
    live = all(run.is_live for run in page.items)
    app.show_page(
        page,
        _columns(app, live=live),
        empty="Nothing runs; start something with `corral run`.",
    )
