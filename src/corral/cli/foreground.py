"""Follow a run in the foreground, from the start of its supervisor to its end."""

import os
import time
from contextlib import suppress
from typing import Any

import click

from corral.adapters.processes import process
from corral.adapters.supervisor_process import StartingSupervisor, SupervisorLost
from corral.cli import attach
from corral.cli.attach import OutputSink
from corral.cli.context import App
from corral.cli.run_command import (
    queued_text,
    report_start_failure,
    report_started,
    supervisor_exited,
)
from corral.cli.tty import terminal_size
from corral.config import run_folder
from corral.domain.outputs.model import OutputState
from corral.domain.runs.model import Run, RunMode, RunState
from corral.kernel.display_text import escape_unprintable
from corral.kernel.errors import NotFound, Refused

OUTPUT_WAIT_SECONDS = 30.0
"""Maximum time to wait until another machine has stored the output of a run."""
MAX_POLL_SECONDS = 1.0
"""Maximum time between two checks, in case a wake-up is lost."""
RUN_EXIT_CODES = {
    RunState.TIMED_OUT: 124,
    RunState.CANCELLED: 130,
    RunState.INTERRUPTED: 1,
    RunState.CRASHED: 1,
    RunState.FAILED: 1,
}


def start(app: App, run: Run, supervisor: StartingSupervisor, *, detach: bool) -> int:
    """Hand a queued run to its supervisor, and follow it unless `detach`. Returns the exit code."""
    if run.host != process.host():
        supervisor.cancel()
        return _wait_for_other_node(app, run, detach=detach)
    split = not detach and run.mode is RunMode.PIPE and _is_split()
    with attach.SignalForwarder(wanted=not detach) as signals:
        try:
            answer = supervisor.start(
                store=app.store.address,
                run=run.id,
                use_stdin=not detach and app.store.runs.takes_input(run),
                watched=not detach and run.mode is RunMode.PTY,
                split=split,
                size=terminal_size(),
            )
        except SupervisorLost:
            answer = _answer_of_lost_supervisor(app, run)
        if detach:
            return report_started(app, answer, run.id, run.name)
        if "failed" in answer:
            return report_start_failure(app, answer, run.id)
        if "pid" not in answer:
            click.echo(f"corral: {queued_text(app, answer, run.id)}", err=True)
            waited = app.store.runs.wait_for_start(run.id, given_up=lambda: bool(signals.early))
            if waited.state is RunState.QUEUED:
                app.store.runs.stop(run.id, reason="interrupted while queued")
                _report_end(app, run)
                return 128 + signals.early[0]
        signals.connect(run_folder(run.id))
        return follow_run(app, run, split=split)


def _answer_of_lost_supervisor(app: App, requested: Run) -> dict[str, Any]:
    """Return the answer for a supervisor that exited without one.

    If it had started the run, recovery has given the run a new supervisor. Raises Refused if the
    run was never started.
    """
    run = app.store.runs.refresh(requested)
    if run.state is RunState.QUEUED and run.attempts == 0:
        raise supervisor_exited(requested.id)
    return {"pid": run.pid}


def _wait_for_other_node(app: App, requested: Run, *, detach: bool) -> int:
    """Wait for a run that may start on another machine; show its output when it has ended."""
    app.store.runs.start_queued()
    run = app.store.runs.get(requested.id)
    if detach:
        app.report(f"{run.id} is {run.state}. List the nodes with `corral node list`.", run)
        return 0
    click.echo(f"corral: {run.id} is {run.state}. Its output is shown when it ends.", err=True)
    ended = app.store.runs.wait(run.id)
    try:
        _wait_for_output(app, ended)
        for name, sink in _sinks(app, ended, split=False).items():
            _show_stored_output(app, ended, name, sink)
            attach.write_all(sink.to, sink.finish())
    except Refused as error:  # the exit code of the run is reported all the same
        click.echo(f"corral: {error}", err=True)
    _report_end(app, ended)
    return exit_status(ended)


def _wait_for_output(app: App, ended: Run) -> None:
    """Wait until the run's machine has stored its output, at most OUTPUT_WAIT_SECONDS."""
    deadline = time.monotonic() + OUTPUT_WAIT_SECONDS
    with suppress(NotFound), app.store.listening() as listener:
        while app.store.outputs.get(ended.id).state is OutputState.OPEN:
            if (remaining := deadline - time.monotonic()) <= 0:
                return
            listener.wait(min(remaining, MAX_POLL_SECONDS))


def follow_run(app: App, run: Run, *, split: bool) -> int:
    """Show the output of a run until it ends or the user detaches. Returns the exit code."""
    runs = app.store.runs
    app.store.release_connections_early()
    sinks = _sinks(app, run, split=split)
    missed: list[str] = []
    try:
        if run.mode is RunMode.PTY:
            attach.attach(run_folder(run.id), to=sinks["output"].to)
        else:
            missed = attach.stream(
                run_folder(run.id),
                is_over=lambda: not runs.refresh(run).is_live,
                sinks=sinks,
            )
    except attach.Detached:
        click.echo(
            f"\r\nDetached from {run.id}. Attach again with `corral attach {run.id}`.", err=True
        )
        _report_end(app, run)
        return 0
    except attach.NoOutputSeen:
        missed = ["output"]
    except BrokenPipeError:
        runs.stop(run.id, reason="the reader of its output exited")
        raise
    ended = runs.wait(run.id)
    for name in missed:
        _show_stored_output(app, ended, name, sinks[name])
    for sink in sinks.values():
        attach.write_all(sink.to, sink.finish())
    _report_end(app, ended)
    return exit_status(ended)


def _report_end(app: App, run: Run) -> None:
    """Report how a run ended, where its output does not show it.

    With `--json` print the run's record, the only output on standard output.
    """
    if app.json:
        app.show(app.store.runs.get(run.id))
        return
    reason = (
        "" if run.state is RunState.FAILED else escape_unprintable(run.reason or "").rstrip(".")
    )
    if run.denied_text:
        retry = f" Retry with: {run.retry_command}" if run.retry_command else ""
        suffix = f": {reason}" if reason else ""
        click.echo(f"corral: {run.id} is {run.state}, {run.denied_text}{suffix}.{retry}", err=True)
        return
    can_resume = run.session_id is not None and not run.is_live and os.isatty(2)
    if reason or can_resume:
        is_repetition = reason == run.state.replace("_", " ")  # timed_out: timed out
        suffix = f": {reason}" if reason and not is_repetition else ""
        resume = f" Resume it with `corral resume {run.name or run.id}`." if can_resume else ""
        click.echo(f"corral: {run.id} is {run.state}{suffix}.{resume}", err=True)


def _sinks(app: App, run: Run, *, split: bool) -> dict[str, OutputSink]:
    """Return where each output goes; an agent's structured stream is converted to text."""
    from corral.services.runs.output_rendering import find_renderer

    transcript = find_renderer(run, app.store.runs.get_launch(run.id))
    to = 2 if app.json else 1
    sinks = {"output": OutputSink(to, bytes)}
    if transcript is not None:
        sinks["output"] = OutputSink(
            to, lambda data: transcript.feed(data).encode(), lambda: transcript.finish().encode()
        )
    if split or transcript is not None:
        sinks["stderr"] = OutputSink(2, bytes)
    return sinks


def _show_stored_output(app: App, run: Run, name: str, sink: OutputSink) -> None:
    """Show the stored output of a run that ended before it could be followed."""
    with suppress(NotFound):
        for piece in app.store.outputs.follow(run.id, stream=name):
            attach.write_all(sink.to, sink.show(piece.text))


def exit_status(run: Run) -> int:
    """Return the exit status that a shell would report for a command that ended like this run."""
    if run.state is RunState.COMPLETED:
        return 0
    if run.state in (RunState.TIMED_OUT, RunState.INTERRUPTED):
        return RUN_EXIT_CODES[run.state]
    if run.exit_code is not None:
        return run.exit_code or RUN_EXIT_CODES[run.state]
    return 128 + run.signal if run.signal is not None else RUN_EXIT_CODES[run.state]


def _is_split() -> bool:
    """Return whether standard output and standard error are different files."""
    try:
        return not os.path.sameopenfile(1, 2)
    except OSError:
        return False
