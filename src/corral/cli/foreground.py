"""Staying with a run: from the moment a keeper is told of it to the run's end."""

import os
import time
from contextlib import suppress
from typing import Any

import click

from corral.adapters import process
from corral.adapters.supervisor_process import KeeperLost, StartingKeeper
from corral.cli import terminal
from corral.cli.app import App, terminal_size
from corral.cli.run_command import failed, in_line, lost, tell
from corral.cli.terminal import Outlet
from corral.config import run_folder
from corral.domain.outputs.model import OutputState
from corral.domain.runs.model import Mode, Run, RunState
from corral.kernel.errors import NotFound, Refused
from corral.kernel.text import printable

SEALING_SECONDS = 30.0
LONGEST_SLEEP = 1.0  # behind a wake-up that never came
EXIT_CODES = {
    RunState.TIMED_OUT: 124,
    RunState.CANCELLED: 130,
    RunState.INTERRUPTED: 1,
    RunState.CRASHED: 1,
    RunState.FAILED: 1,
}


def begin(app: App, asked: Run, keeper: StartingKeeper, *, detach: bool) -> int:
    """Have a keeper take a run, and stay with it unless it is detached."""
    if asked.host != process.host():
        keeper.dismiss()
        return _leave_to_whom_it_fits(app, asked, detach=detach)
    split = not detach and asked.mode is Mode.PIPE and _is_split()
    with terminal.Signals(wanted=not detach) as signals:
        try:
            answer = keeper.keep(
                store=app.store.address,
                run=asked.id,
                use_stdin=not detach and app.store.runs.takes_input(asked),
                watched=not detach and asked.mode is Mode.PTY,
                split=split,
                size=terminal_size(),
            )
        except KeeperLost:
            answer = _begun(app, asked)
        if detach:
            return tell(app, answer, asked.id, asked.name)
        if "failed" in answer:
            return failed(app, answer, asked.id)
        if "pid" not in answer:
            click.echo(f"corral: {in_line(app, answer, asked.id)}", err=True)
            waited = app.store.runs.wait_for_start(asked.id, given_up=lambda: bool(signals.early))
            if waited.state is RunState.QUEUED:
                app.store.runs.stop(asked.id, reason="nobody waits for it any more")
                _tell_end(app, asked)
                return 128 + signals.early[0]
        signals.aim(run_folder(asked.id))
        return stay(app, asked, split=split)


def _begun(app: App, asked: Run) -> dict[str, Any]:
    """What a keeper that died without a word would have said of a run that it had begun: such a
    run has a new one then."""
    run = app.store.runs.refreshed(asked)
    if run.state is RunState.QUEUED and run.attempts == 0:
        raise lost(asked.id)
    return {"pid": run.pid}


def _leave_to_whom_it_fits(app: App, asked: Run, *, detach: bool) -> int:
    """A run that another machine is to take, or may: its output is shown once it is over."""
    app.store.runs.start_queued()
    run = app.store.runs.get(asked.id)
    if detach:
        app.say(f"{run.id} is {run.state} (`corral node list` shows who may take it).", run)
        return 0
    click.echo(f"corral: {run.id} is {run.state}; its output follows at its end.", err=True)
    ended = app.store.runs.wait(run.id)
    try:
        _wait_for_output(app, ended)
        for name, outlet in _outlets(app, ended, split=False).items():
            _show_late(app, ended, name, outlet)
            terminal.write(outlet.to, outlet.finish())
    except Refused as error:  # how it ended counts all the same
        click.echo(f"corral: {error}", err=True)
    _tell_end(app, ended)
    return exit_code_of(ended)


def _wait_for_output(app: App, ended: Run) -> None:
    """Its machine brings it into the store once the run is over."""
    deadline = time.monotonic() + SEALING_SECONDS
    with suppress(NotFound), app.store.listening() as listener:
        while app.store.outputs.get(ended.id).state is OutputState.OPEN:
            if (left := deadline - time.monotonic()) <= 0:
                return
            listener.wait(min(left, LONGEST_SLEEP))


def stay(app: App, asked: Run, *, split: bool) -> int:
    """Stay with a run until it is over, or the person detaches; gives back its exit code."""
    runs = app.store.runs
    app.store.spare_connections()
    outlets = _outlets(app, asked, split=split)
    missed: list[str] = []
    try:
        if asked.mode is Mode.PTY:
            terminal.attach(run_folder(asked.id), to=outlets["output"].to)
        else:
            missed = terminal.stream(
                run_folder(asked.id),
                is_over=lambda: not runs.refreshed(asked).is_live,
                outlets=outlets,
            )
    except terminal.Detached:
        click.echo(f"\r\nDetached; {asked.id} goes on (`corral attach {asked.id}`).", err=True)
        _tell_end(app, asked)
        return 0
    except terminal.NothingSeen:
        missed = ["output"]
    except BrokenPipeError:
        runs.stop(asked.id, reason="nobody reads its output")
        raise
    ended = runs.wait(asked.id)
    for name in missed:
        _show_late(app, ended, name, outlets[name])
    for outlet in outlets.values():
        terminal.write(outlet.to, outlet.finish())
    _tell_end(app, ended)
    return exit_code_of(ended)


def _tell_end(app: App, run: Run) -> None:
    """Say how it ended where that is not plain from what was seen. With --json the record is the
    answer, and all that standard output gets."""
    if app.json:
        app.show(app.store.runs.get(run.id))
        return
    why = "" if run.state is RunState.FAILED else printable(run.reason or "").rstrip(".")
    if run.denied_text:
        how = f" Try again with: {run.retry_command}" if run.retry_command else ""
        because = f": {why}" if why else ""
        click.echo(f"corral: {run.id} is {run.state}, {run.denied_text}{because}.{how}", err=True)
        return
    goes_on = run.session_id is not None and not run.is_live and os.isatty(2)
    if why or goes_on:
        how = f"; go on with `corral resume {run.name or run.id}`" if goes_on else ""
        click.echo(f"corral: {run.id} is {run.state}{': ' if why else ''}{why}{how}.", err=True)


def _outlets(app: App, run: Run, *, split: bool) -> dict[str, Outlet]:
    """Where a run's outputs go, and how: an agent's structured lines as its words."""
    from corral.services.runs.transcript_text import telling_of

    telling = telling_of(app.store, run)
    to = 2 if app.json else 1
    outlets = {"output": Outlet(to, bytes)}
    if telling is not None:
        outlets["output"] = Outlet(
            to, lambda data: telling.feed(data).encode(), lambda: telling.finish().encode()
        )
    if split or telling is not None:
        outlets["errors"] = Outlet(2, bytes)
    return outlets


def _show_late(app: App, run: Run, name: str, outlet: Outlet) -> None:
    """What a run wrote that was over before anybody could watch it."""
    with suppress(NotFound):
        for piece in app.store.outputs.follow(run.id, stream=name):
            terminal.write(outlet.to, outlet.show(piece.text))


def exit_code_of(run: Run) -> int:
    """What a shell expects of a command that ended like this run."""
    if run.state is RunState.COMPLETED:
        return 0
    if run.state in (RunState.TIMED_OUT, RunState.INTERRUPTED):
        return EXIT_CODES[run.state]
    if run.exit_code is not None:
        return run.exit_code or EXIT_CODES[run.state]
    return 128 + run.signal if run.signal is not None else EXIT_CODES[run.state]


def _is_split() -> bool:
    """Whether output and errors go to different places."""
    try:
        return not os.path.sameopenfile(1, 2)
    except OSError:
        return False
