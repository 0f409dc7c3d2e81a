"""`corral up`: start the daemon in the background, in the foreground, or as a system service."""

import os
from typing import Any

import click

from corral.adapters import daemon_process
from corral.cli.click_classes import Command
from corral.cli.context import App, pass_app
from corral.kernel.errors import CorralError, Refused, error_from_code


@click.command(
    "up",
    cls=Command,
    examples=[
        "corral up",
        "corral up --foreground --port 8000",
        "corral up --slots 4 --label gpu",
        "corral up --install",
    ],
)
@click.option(
    "--port",
    type=int,
    default=daemon_process.DEFAULT_PORT,
    show_default=True,
    help="Port to listen on; 0 chooses a free one.",
)
@click.option("--bind", metavar="ADDRESS", help="Address to listen on (default: loopback only).")
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="Host name that browsers may use to reach the daemon. Repeatable.",
)
@click.option(
    "--slots",
    type=int,
    metavar="N",
    help="Maximum number of concurrent runs on this node (default: runs.max_concurrent, 200).",
)
@click.option(
    "--label", multiple=True, metavar="L", help="Label of this node, such as gpu. Repeatable."
)
@click.option("--foreground", is_flag=True, help="Run in the foreground.")
@click.option("--install", is_flag=True, help="Install a service that starts when you log in.")
@click.option("--uninstall", is_flag=True, help="Remove that service.")
@pass_app
def command(app: App, /, foreground: bool, install: bool, uninstall: bool, **options: Any) -> int:
    """Start the daemon with the HTTP API and the dashboard, and print the dashboard's URL.

    Prints the runs that were found dead. Runs continue without the daemon.
    """
    arguments = _daemon_arguments(options)
    if (origin := app.local_store.db.part_of) is not None and not uninstall:
        raise Refused(
            f"{app.local_store.db.url} is an export of a project, for inspection only. Start the "
            f"daemon for {origin}, or restore the export into a new store with `corral db "
            "restore`.",
            reason="project_export",
        )
    if install or uninstall:
        return _change_service(app, arguments, install=install)
    store, address = app.local_store.db.url, app.local_store.address
    daemon = daemon_process.find_daemon(store)
    if daemon is not None:
        app.report(
            f"The daemon is already running (pid {daemon.pid}): {daemon.link}", _record(daemon)
        )
        if ignored := _explicit_options(options):
            app.warn("ignored", f"{ignored} ignored. Stop the daemon first with `corral down`.")
        return 0
    app.close()
    if foreground:
        program = daemon_process.command(arguments)
        os.execve(program[0], program, daemon_process.environment(address))
    log = daemon_process.info_path(store, ".log")
    answer = daemon_process.start(address, arguments, log)
    if "daemon" not in answer:
        raise _start_error(answer, str(log))
    _report_started(app, answer)
    return 0


def _explicit_options(options: dict[str, Any]) -> str:
    """Return the options given on the command line, which a running daemon does not apply."""
    source = click.get_current_context().get_parameter_source
    explicit = click.core.ParameterSource.COMMANDLINE
    return ", ".join(f"--{name.replace('_', '-')}" for name in options if source(name) is explicit)


def _daemon_arguments(options: dict[str, Any]) -> list[str]:
    arguments = ["--port", str(options["port"])]
    for name in ("bind", "slots"):
        if options[name] is not None:
            arguments += [f"--{name}", str(options[name])]
    for name in ("allow_host", "label"):
        for value in options[name]:
            arguments += [f"--{name.replace('_', '-')}", value]
    return arguments


def _report_started(app: App, answer: dict[str, Any]) -> None:
    from corral.cli.commands.recover import COLUMNS
    from corral.cli.render import write_line, write_table
    from corral.domain.runs.model import RecoveryResult

    if answer["recovered"] and not app.json:
        import msgspec

        write_line("Recovered runs:")
        write_table([msgspec.convert(run, RecoveryResult) for run in answer["recovered"]], COLUMNS)
    app.report(f"Started the daemon (pid {answer['daemon']['pid']}): {answer['link']}", answer)


def _record(daemon: daemon_process.Daemon) -> dict[str, Any]:
    return {"daemon": daemon, "link": daemon.link, "recovered": []}


def _start_error(answer: dict[str, Any], log: str) -> CorralError:
    error = answer.get("error")
    if error is None:
        return Refused(f"The daemon exited during start-up. See {log}.", log=log)
    return error_from_code(**error)


def _change_service(app: App, arguments: list[str], *, install: bool) -> int:
    from corral.adapters import service_units

    store, address = app.local_store.db.url, app.local_store.address
    app.close()
    unit = service_units.service_for(store)
    if install:
        result = unit.install(
            daemon_process.command(arguments), service_units.service_environment(address)
        )
    else:
        result = unit.uninstall()
    app.report(result.sentence, result)
    return 0
