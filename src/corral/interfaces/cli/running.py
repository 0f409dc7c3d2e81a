"""What `corral run` and `corral resume` do once their words are understood."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from corral.adapters import keepers, process
from corral.adapters.keepers import KeeperLost, StartingKeeper
from corral.config import run_folder
from corral.interfaces.cli.app import App
from corral.kernel.errors import Invalid, NotFound, Refused
from corral.kernel.money import parse_usd
from corral.rooms.runs.model import Mode, Run, RunState

EXIT_CODES = {
    RunState.TIMED_OUT: 124,
    RunState.CANCELLED: 130,
    RunState.INTERRUPTED: 1,
    RunState.CRASHED: 1,
    RunState.FAILED: 1,
}


def run(
    app: App, words: tuple[str, ...], *, is_command: bool, detach: bool, given: dict[str, Any]
) -> int:
    """Ask for a run, have a keeper take it, and stay with it unless it is detached."""
    keeper = _keeper()
    try:
        wishes = understand(words, is_command=is_command, detach=detach, given=given)
        asked = app.store.runs.ask(**wishes, claimed=True)
    except BaseException:
        keeper.dismiss()
        raise
    return begin(app, asked, keeper, detach=detach)


def _keeper() -> StartingKeeper:
    """The keeper that began to load with this command, or a new one."""
    return keepers.early or StartingKeeper()


def begin(app: App, asked: Run, keeper: StartingKeeper, *, detach: bool) -> int:
    """Have a keeper take a run, and stay with it unless it is detached."""
    from corral.interfaces.cli import terminal

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
                size=terminal.size(),
            )
        except KeeperLost:
            raise Refused(
                f"The keeper of {asked.id} ended without a word; "
                f"`corral show {asked.id}` tells what is known of the run.",
                id=asked.id,
            ) from None
        if "failed" in answer:
            return _failed(app, asked, answer)
        if "pid" not in answer:
            run = app.store.runs.get(asked.id)
            if run.state is not RunState.QUEUED:
                raise Refused(f"{run.id} is {run.state}.", id=run.id)
            if detach:
                app.say(f"{run.id} waits in line: {answer['waits']}", run)
                return 0
            click.echo(f"corral: {run.id} waits in line: {answer['waits']}", err=True)
            waited = app.store.runs.wait_for_start(run.id, given_up=lambda: bool(signals.early))
            if waited.state is RunState.QUEUED:
                app.store.runs.stop(run.id, reason="nobody waits for it any more")
                return 128 + signals.early[0]
        if detach:
            app.say(
                f"Started {asked.id} (pid {answer['pid']}); "
                f"see `corral logs -f {asked.name or asked.id}`.",
                app.store.runs.get(asked.id),
            )
            return 0
        signals.aim(run_folder(asked.id))
        return stay(app, asked, split=split)


def _leave_to_whom_it_fits(app: App, asked: Run, *, detach: bool) -> int:
    """A run that another machine is to take, or may: its output is shown once it is over."""
    app.store.runs.start_queued()
    run = app.store.runs.get(asked.id)
    if detach:
        app.say(f"{run.id} is {run.state} (`corral node list` shows who may take it).", run)
        return 0
    click.echo(f"corral: {run.id} is {run.state}; its output follows at its end.", err=True)
    ended = app.store.runs.wait(run.id)
    _show_late(app, ended, "output", 1, _show(app, ended))
    return exit_code_of(ended)


def _failed(app: App, asked: Run, answer: dict[str, Any]) -> int:
    """It could not be started: that is the run's end, and the command's."""
    if "code" in answer:
        raise Refused(answer["failed"], id=asked.id)
    click.echo(f"corral: {answer['failed']}", err=True)
    return int(answer["exit_code"])


def stay(app: App, asked: Run, *, split: bool) -> int:
    """Stay with a run until it is over, or the person detaches; gives back its exit code."""
    from corral.interfaces.cli import terminal

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
    from corral.interfaces.cli import terminal

    with suppress(NotFound):
        for piece in app.store.outputs.follow(run.id, stream=name):
            terminal.write(to, show(piece.text))


def _show(app: App, run: Run) -> Callable[[bytes], bytes]:
    """How a run's output is shown to a person: an agent's structured lines as its words."""
    from corral.library.telling import telling_of

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


def is_terminal() -> bool:
    """Whether a person sits in front of this command."""
    return os.isatty(0) and os.isatty(1)


def _is_split() -> bool:
    """Whether output and errors go to different places."""
    try:
        return not os.path.sameopenfile(1, 2)
    except OSError:
        return False


def understand(
    words: tuple[str, ...], *, is_command: bool, detach: bool, given: dict[str, Any]
) -> dict[str, Any]:
    """What `store.runs.ask` is to be told."""
    prompt = None
    if words and not is_command:
        if len(words) > 1:
            raise click.UsageError(
                "Put the prompt into quotes, or a command behind `--`: corral run -- make test."
            )
        prompt = _prompt(words[0])
    if not words and not given["session"]:
        raise click.UsageError("Give a prompt, or a command behind `--`.")
    return {
        "prompt": prompt,
        "command": list(words) if is_command else None,
        "agent": given["agent"],
        "project": given["project"],
        "name": given["name"],
        "session": given["session"],
        "timeout_ms": given["timeout"],
        "idle_ms": given["idle_exit"],
        "grace_ms": given["grace"],
        "restarts": restarts(given["restart"]),
        "env": dict(_pair(text, "--env") for text in given["env"]),
        "secrets": dict(_pair(text, "--secret") for text in given["secret"]),
        "budget_micros": parse_usd(given["budget"]) if given["budget"] else None,
        "output_cap": size_of(given["keep"]) if given["keep"] else None,
        "approvals": list(given["approvals"]),
        "terminal": given["pty"],
        "acp": given["acp"],
        "host": given.get("host"),
        "labels": list(given.get("labels", ())),
        "watched": not detach and is_terminal(),
    }


def _prompt(word: str) -> str:
    from corral.interfaces.cli.app import read_body

    text = read_body(word, False) if word == "-" or word.startswith("@") else word
    assert isinstance(text, str)
    return text


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"{option} takes NAME=VALUE, not {text!r}.")
    return name, value


def size_of(text: str) -> int:
    """Bytes in `500KB`, `100MB` or `2GB`."""
    units = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
    number = text.upper().rstrip("BKMG")
    unit = text.upper()[len(number) :] or "B"
    if not number.isdigit() or unit not in units:
        raise Invalid(f"{text!r} is no size; write one like 500KB, 100MB or 2GB.")
    return int(number) * units[unit]


def restarts(text: str | None) -> int:
    """How often a run may be restarted: `no`, `on-failure`, `on-failure:3`."""
    if text in (None, "no"):
        return 0
    kind, _, count = str(text).partition(":")
    if kind == "on-failure" and (count.isdigit() or not count):
        return int(count or 3)
    raise Invalid(f"{text!r} is no restart policy; write no, on-failure or on-failure:3.")
