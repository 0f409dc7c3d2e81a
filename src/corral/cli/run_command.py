"""What `corral run` and `corral resume` do once their words are understood.

Of a detached run this process knows only the wish: the keeper, which has loaded all that it takes
meanwhile, asks for the run and starts it.
"""

import os
from typing import Any

import click

from corral.adapters import supervisor_process
from corral.adapters.supervisor_process import KeeperLost, StartingKeeper
from corral.cli.app import App, is_terminal, pairs, terminal_size
from corral.kernel.errors import Invalid, Refused, raised_elsewhere
from corral.kernel.text import printable

# What tells who asks: the agent, and the run in which it was called.
ASKER = ("CORRAL_AGENT", "CORRAL_RUN")
MISSING = 127  # what shells say when there is no such program


def run(
    app: App, words: tuple[str, ...], *, is_command: bool, detach: bool, given: dict[str, Any]
) -> int:
    """Ask for a run, have a keeper take it, and stay with it unless it is detached."""
    keeper = _keeper()
    try:
        session = given.pop("session")
        wish = {
            "prompt": _prompt(words, is_command, session),
            "command": list(words) if is_command else None,
            "session": session,
            **understand(app, detach=detach, given=given),
        }
        placed = wish["host"] is not None or wish["labels"]
        asked = None if detach and not placed else app.store.runs.ask(**wish, claimed=True)
    except BaseException:
        keeper.dismiss()
        raise
    if asked is None:
        return _leave(app, wish, keeper)
    from corral.cli import foreground

    return foreground.begin(app, asked, keeper, detach=detach)


def resume(app: App, id: str, prompt: str | None, *, detach: bool, given: dict[str, Any]) -> int:
    """Ask for a run that goes on where another one stopped, and stay with it as with any run."""
    from corral.cli import foreground as cli_foreground

    keeper = _keeper()
    try:
        words = None if prompt is None else _text(prompt)
        wish = understand(app, detach=detach, given=given)
        asked = app.store.runs.resume(id, prompt=words, **wish, claimed=True)
    except BaseException:
        keeper.dismiss()
        raise
    return cli_foreground.begin(app, asked, keeper, detach=detach)


def _keeper() -> StartingKeeper:
    """The keeper that began to load with this command, or a new one."""
    try:
        return supervisor_process.early or StartingKeeper()
    except OSError as error:
        raise Refused(
            f"No process could be started for the run ({error.strerror}), and nothing was begun; "
            "try again when fewer are going.",
            reason="not_started",
        ) from None


def _leave(app: App, wish: dict[str, Any], keeper: StartingKeeper) -> int:
    """Have a keeper ask for a run and start it; it goes on by itself."""
    asker = {name: os.environ[name] for name in ASKER if name in os.environ}
    try:
        answer = keeper.keep(store=app.url, wish=wish, asker=asker, size=terminal_size())
    except KeeperLost:
        raise lost("the run") from None
    if "refused" in answer:
        raise raised_elsewhere(**answer["refused"])
    return tell(app, answer, answer["run"], wish["name"])


def lost(run: str) -> Refused:
    """What to say of a keeper that ended without a word."""
    return Refused(
        f"The keeper of {run} ended without a word; `corral ps -a` tells what is known of it.",
        reason="supervisor_lost",
    )


def tell(app: App, answer: dict[str, Any], id: str, name: str | None) -> int:
    """Say how a run began that is left to its keeper; gives back the exit code."""
    if "failed" in answer:
        return failed(app, answer, id)
    if "pid" in answer:
        sentence = f"Started {id} (pid {answer['pid']}); see `corral logs -f {name or id}`."
    else:
        sentence = in_line(app, answer, id)
    app.say(sentence, app.store.runs.get(id) if app.json else None)
    return 0


def failed(app: App, answer: dict[str, Any], id: str) -> int:
    """It could not be started: that is the run's end, and the command's."""
    if "code" in answer:
        raise raised_elsewhere(answer["code"], answer["failed"], {"id": id})
    app.store.alerts.see_to_delivery()
    run = app.store.runs.get(id)
    missing = answer["exit_code"] == MISSING and run.provider != "plain"
    hint = "; install it, or take another with --agent" if missing else ""
    click.echo(f"corral: {printable(answer['failed'])}{hint}", err=True)
    if app.json:
        app.show(run)
    return int(answer["exit_code"])


def in_line(app: App, answer: dict[str, Any], id: str) -> str:
    """Of a run that no keeper has begun; Refused when it waits no more."""
    run = app.store.runs.get(id)
    if run.state != "queued":
        raise Refused(f"{id} is {run.state}.", id=id)
    leave = f"`corral stop {run.name or id}` takes it out."
    return f"{id} waits in line: {answer['waits']} {leave}"


def understand(app: App, *, detach: bool, given: dict[str, Any]) -> dict[str, Any]:
    """What `store.runs.ask` and `resume` are to be told of the options that both have."""
    return {
        "agent": given["agent"],
        "project": given["project"],
        "name": given["name"],
        "timeout_ms": given["timeout"],
        "idle_ms": given["idle_exit"],
        "grace_ms": given["grace"],
        "restarts": restarts(given["restart"]),
        "env": pairs(given["env"], "--env"),
        "secrets": pairs(given["secret"], "--secret"),
        "budget_micros": _micros(given["budget"]) if given["budget"] else None,
        "output_cap": size_of(given["keep"]) if given["keep"] else None,
        "approvals": list(given["approvals"]),
        "terminal": given["pty"],
        "acp": given["acp"],
        "host": given["host"],
        "labels": list(given["labels"]),
        # A program that wants JSON is nobody who sits in front of a terminal.
        "watched": not detach and not app.json and is_terminal(),
    }


def _prompt(words: tuple[str, ...], is_command: bool, session: str | None) -> str | None:
    if is_command and words:
        return None
    if len(words) > 1:
        raise click.UsageError(
            "Put the prompt into quotes, or a command behind `--`: corral run -- make test."
        )
    if not words and not session:
        raise click.UsageError("Give a prompt, or a command behind `--`.")
    return _text(words[0]) if words else None


def _text(word: str) -> str:
    from corral.cli.app import read_body

    text = read_body(word, False) if word == "-" or word.startswith("@") else word
    assert isinstance(text, str)
    return text


def _micros(text: str) -> int:
    from corral.kernel.money import parse_usd

    return parse_usd(text)


def size_of(text: str) -> int:
    """Bytes in `500KB`, `100MB` or `2GB`."""
    units = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
    number = text.upper().rstrip("BKMG")
    unit = text.upper()[len(number) :] or "B"
    if not number.isdecimal() or unit not in units:
        raise Invalid(f"{text!r} is no size; write one like 500KB, 100MB or 2GB.")
    return int(number) * units[unit]


def restarts(text: str | None) -> int | None:
    """How often a run may be restarted: `no`, `on-failure`, `on-failure:3`; None: nothing said."""
    if text is None:
        return None
    if text == "no":
        return 0
    kind, _, count = str(text).partition(":")
    if kind == "on-failure" and (count.isdecimal() or not count):
        return int(count or 3)
    raise Invalid(f"{text!r} is no restart policy; write no, on-failure or on-failure:3.")
