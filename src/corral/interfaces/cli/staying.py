"""Staying with a run: from the moment a keeper is told of it to the run's end."""

import os
from collections.abc import Callable
from contextlib import suppress

import click

from corral.adapters.keepers import KeeperLost, StartingKeeper
from corral.config import run_folder
from corral.interfaces.cli import terminal
from corral.interfaces.cli.app import App, terminal_size
from corral.interfaces.cli.running import in_line, lost, tell
from corral.kernel.errors import NotFound
from corral.rooms.runs.model import Mode, Run, RunState

EXIT_CODES = {
    RunState.TIMED_OUT: 124,
    RunState.CANCELLED: 130,
    RunState.INTERRUPTED: 1,
    RunState.CRASHED: 1,
    RunState.FAILED: 1,
}


def begin(app: App, asked: Run, keeper: StartingKeeper, *, detach: bool) -> int:
    """Have a keeper take a run, and stay with it unless it is detached."""
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
            raise lost(asked.id) from None
        if detach or "failed" in answer:
            return tell(app, answer, asked.id, asked.name)
        if "pid" not in answer:
            click.echo(f"corral: {in_line(app, answer, asked.id)}", err=True)
            waited = app.store.runs.wait_for_start(asked.id, given_up=lambda: bool(signals.early))
            if waited.state is RunState.QUEUED:
                app.store.runs.stop(asked.id, reason="nobody waits for it any more")
                return 128 + signals.early[0]
        signals.aim(run_folder(asked.id))
        return stay(app, asked, split=split)


def stay(app: App, asked: Run, *, split: bool) -> int:
    """Stay with a run until it is over, or the person detaches; gives back its exit code."""
    runs = app.store.runs
    outputs = {"output": 1}
    if split:
        outputs["errors"] = 2
    show = _show(app, asked)
    missed: list[str] = []
    try:
        if asked.mode is Mode.PTY:
            terminal.attach(run_folder(asked.id))
        else:
            missed = terminal.stream(
                run_folder(asked.id),
                is_over=lambda: not runs.refreshed(asked).is_live,
                outputs=outputs,
                show=show,
            )
    except terminal.Detached:
        click.echo(f"\r\nDetached; {asked.id} goes on (`corral attach {asked.id}`).", err=True)
        return 0
    except terminal.NothingSeen:
        missed = ["output"]
    except BrokenPipeError:
        runs.stop(asked.id, reason="nobody reads its output")
        raise
    ended = runs.wait(asked.id)
    for name in missed:
        _show_late(app, ended, name, outputs[name], show)
    if ended.state not in (RunState.COMPLETED, RunState.FAILED):
        click.echo(f"corral: {ended.id} is {ended.state}: {ended.reason}.", err=True)
    return exit_code_of(ended)


def _show_late(app: App, run: Run, name: str, to: int, show: Callable[[bytes], bytes]) -> None:
    """What a run wrote that was over before anybody could watch it."""
    with suppress(NotFound):
        for piece in app.store.outputs.follow(run.id, stream=name):
            terminal.write(to, show(piece.text))


def _show(app: App, run: Run) -> Callable[[bytes], bytes]:
    """How a run's output is shown to a person: an agent's structured lines as its words."""
    from corral.interfaces.cli.telling import telling_of

    telling = None if app.json else telling_of(app.store, run)
    return (lambda data: telling.feed(data).encode()) if telling is not None else lambda data: data


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
