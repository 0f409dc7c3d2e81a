"""The implementation of `corral run` and `corral resume`.

For a detached run this process only sends the request: the supervisor, which loads its modules in
the meantime, creates the run and starts it.
"""

import os
from typing import Any

import click

from corral.adapters import supervisor_process
from corral.adapters.supervisor_process import StartingSupervisor, SupervisorLost
from corral.cli.context import App
from corral.cli.parameters import parse_pairs
from corral.cli.tty import is_terminal, terminal_size
from corral.kernel.display_text import escape_unprintable
from corral.kernel.errors import Invalid, Refused, error_from_code

CALLER_VARIABLES = ("CORRAL_AGENT", "CORRAL_RUN")
"""The environment variables that identify the caller: an agent, and the run it is in."""
COMMAND_NOT_FOUND = 127  # the exit status of shells for a missing program


def start_run(
    app: App, arguments: tuple[str, ...], *, is_command: bool, detach: bool, options: dict[str, Any]
) -> int:
    """Request a run, hand it to a supervisor, and follow it unless `detach`."""
    supervisor = _start_supervisor()
    try:
        session = options.pop("session")
        request = {
            "prompt": _prompt(arguments, is_command, session),
            "command": list(arguments) if is_command else None,
            "session": session,
            **request_fields(app, detach=detach, options=options),
        }
        # Placing a run on a node needs the store, so that request is made here.
        is_placed = request["host"] is not None or request["labels"]
        run = None if detach and not is_placed else app.store.runs.start(**request, claimed=True)
    except BaseException:
        supervisor.cancel()
        raise
    if run is None:
        return _start_detached(app, request, supervisor)
    from corral.cli import foreground

    return foreground.start(app, run, supervisor, detach=detach)


def resume_run(
    app: App, id: str, prompt: str | None, *, detach: bool, options: dict[str, Any]
) -> int:
    """Request a run that continues another run or a session, and follow it unless `detach`."""
    from corral.cli import foreground

    supervisor = _start_supervisor()
    try:
        text = None if prompt is None else _read_prompt(prompt)
        request = request_fields(app, detach=detach, options=options)
        run = app.store.runs.resume(id, prompt=text, **request, claimed=True)
    except BaseException:
        supervisor.cancel()
        raise
    return foreground.start(app, run, supervisor, detach=detach)


def _start_supervisor() -> StartingSupervisor:
    """Return the supervisor that was started with this command, or start one."""
    try:
        return supervisor_process.prestarted or StartingSupervisor()
    except OSError as error:
        raise Refused(
            f"Cannot start a supervisor process: {error.strerror}. Nothing was started. Try again "
            "when fewer processes are running.",
            reason="not_started",
        ) from None


def _start_detached(app: App, request: dict[str, Any], supervisor: StartingSupervisor) -> int:
    """Send the request to the supervisor, which creates and starts the run."""
    caller = {name: os.environ[name] for name in CALLER_VARIABLES if name in os.environ}
    try:
        answer = supervisor.start(
            store=app.url, request=request, caller=caller, size=terminal_size()
        )
    except SupervisorLost:
        raise supervisor_exited("the run") from None
    if "refused" in answer:
        raise error_from_code(**answer["refused"])
    return report_started(app, answer, answer["run"], request["name"])


def supervisor_exited(run: str) -> Refused:
    """Return the error for a supervisor that exited without an answer."""
    return Refused(
        f"The supervisor of {run} exited unexpectedly. Check its state with `corral ps -a`.",
        reason="supervisor_lost",
    )


def report_started(app: App, answer: dict[str, Any], id: str, name: str | None) -> int:
    """Report that a detached run was started or queued. Returns the exit code."""
    if "failed" in answer:
        return report_start_failure(app, answer, id)
    if "pid" in answer:
        sentence = (
            f"Started {id} (pid {answer['pid']}). Follow its output with "
            f"`corral logs -f {name or id}`."
        )
    else:
        sentence = queued_text(app, answer, id)
    app.report(sentence, app.store.runs.get(id) if app.json else None)
    return 0


def report_start_failure(app: App, answer: dict[str, Any], id: str) -> int:
    """Report that the program could not be started. Returns the exit code."""
    if "code" in answer:
        raise error_from_code(answer["code"], answer["failed"], {"id": id})
    app.store.internal.alerts.start_delivery()
    run = app.store.runs.get(id)
    is_missing = answer["exit_code"] == COMMAND_NOT_FOUND and run.provider != "plain"
    hint = " Install it, or choose another agent with --agent." if is_missing else ""
    message = escape_unprintable(answer["failed"])
    if hint and not message.endswith("."):
        message += "."
    click.echo(f"corral: {message}{hint}", err=True)
    if app.json:
        app.show(run)
    return int(answer["exit_code"])


def queued_text(app: App, answer: dict[str, Any], id: str) -> str:
    """Describe why a run is queued. Raises Refused when the run is no longer queued."""
    run = app.store.runs.get(id)
    if run.state != "queued":
        raise Refused(f"{id} is {run.state}.", id=id)
    return f"{id} is queued: {answer['waits']} Cancel it with `corral stop {run.name or id}`."


def request_fields(app: App, *, detach: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Convert the options shared by `run` and `resume` to arguments of the API."""
    return {
        "agent": options["agent"],
        "project": options["project"],
        "name": options["name"],
        "timeout_ms": options["timeout"],
        "idle_ms": options["idle_exit"],
        "grace_period_ms": options["grace_period"],
        "max_restarts": parse_restart_policy(options["restart"]),
        "env": parse_pairs(options["env"], "--env"),
        "secrets": parse_pairs(options["secret"], "--secret"),
        "budget_micros": options["budget_micros"],
        "max_output_bytes": parse_size(options["max_output"]) if options["max_output"] else None,
        "approvals": list(options["approvals"]),
        "terminal": options["pty"],
        "acp": options["acp"],
        "host": options["host"],
        "labels": list(options["labels"]),
        # With --json the caller is a program, so the agent must not be interactive.
        "watched": not detach and not app.json and is_terminal(),
    }


def _prompt(arguments: tuple[str, ...], is_command: bool, session: str | None) -> str | None:
    if is_command and arguments:
        return None
    if len(arguments) > 1:
        raise click.UsageError(
            "Quote the prompt, or put a command after `--`: corral run -- make test."
        )
    if not arguments and not session:
        raise click.UsageError("Missing prompt, or command after `--`.")
    return _read_prompt(arguments[0]) if arguments else None


def _read_prompt(source: str) -> str:
    from corral.cli.parameters import read_body

    text = read_body(source, False) if source == "-" or source.startswith("@") else source
    assert isinstance(text, str)
    return text


def parse_size(text: str) -> int:
    """Return the number of bytes in a size such as `500KB`, `100MB` or `2GB`."""
    units = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
    number = text.upper().rstrip("BKMG")
    unit = text.upper()[len(number) :] or "B"
    if not number.isdecimal() or unit not in units:
        raise Invalid(f"Invalid size {text!r}: expected a size such as 500KB, 100MB or 2GB.")
    return int(number) * units[unit]


def parse_restart_policy(text: str | None) -> int | None:
    """Return the maximum number of restarts; None when no policy was given."""
    if text is None:
        return None
    if text == "no":
        return 0
    kind, _, count = str(text).partition(":")
    if kind == "on-failure" and (count.isdecimal() or not count):
        return int(count or 3)
    raise Invalid(
        f"Invalid restart policy {text!r}: expected `no`, `on-failure` or `on-failure:3`."
    )
