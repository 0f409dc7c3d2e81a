"""`corral up`: the daemon, in the background, in front of you, or as a service of the system."""

import os
from typing import Any

import click

from corral.adapters import daemon_process
from corral.cli.app import App, Verb, pass_app
from corral.kernel.errors import CorralError, Refused, raised_elsewhere


@click.command("up", cls=Verb)
@click.option(
    "--port", type=int, default=daemon_process.PORT, show_default=True, help="0: any free one."
)
@click.option("--bind", metavar="ADDRESS", help="Where to listen; this machine alone otherwise.")
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="A name by which browsers may call it."
)
@click.option("--slots", type=int, metavar="N", help="Runs that this machine takes at once.")
@click.option("--label", multiple=True, metavar="L", help="What this machine offers, as gpu.")
@click.option("--foreground", is_flag=True, help="Stay in front, until stopped.")
@click.option("--install", is_flag=True, help="As a service that starts with your log-in.")
@click.option("--uninstall", is_flag=True, help="Take that service away.")
@pass_app
def command(app: App, /, foreground: bool, install: bool, uninstall: bool, **given: Any) -> int:
    """Start the daemon: its loops, the HTTP API and the dashboard; prints the link to open.

    What it finds of runs that were left behind is told. Agents never depend on it.
    """
    options = _options(given)
    if (whole := app.store_here.db.part_of) is not None and not uninstall:
        raise Refused(
            f"{app.store_here.db.url} is an export of a project, to be looked at; bring up "
            f"{whole}, or bring it into a new store with `corral db restore`.",
            reason="project_export",
        )
    if install or uninstall:
        return _service(app, options, install=install)
    store, address = app.store_here.db.url, app.store_here.address
    daemon = daemon_process.find(store)
    if daemon is not None:
        app.say(f"Corral is up already (pid {daemon.pid}): {daemon.link}", _record(daemon))
        if asked := _asked(given):
            click.echo(
                f"corral: it goes on as it was started; for {asked} end it with `corral down` "
                "first.",
                err=True,
            )
        return 0
    app.close()
    if foreground:
        words = daemon_process.command(options)
        os.execve(words[0], words, daemon_process.environment(address))
    log = daemon_process.file_of(store, ".log")
    said = daemon_process.start(address, options, log)
    if "daemon" not in said:
        raise _why_not(said, str(log))
    _tell(app, said)
    return 0


def _asked(given: dict[str, Any]) -> str:
    """The options that somebody gave, and that a daemon which is up has no ear for."""
    source = click.get_current_context().get_parameter_source
    written = click.core.ParameterSource.COMMANDLINE
    return ", ".join(f"--{name.replace('_', '-')}" for name in given if source(name) is written)


def _options(given: dict[str, Any]) -> list[str]:
    options = ["--port", str(given["port"])]
    for name in ("bind", "slots"):
        if given[name] is not None:
            options += [f"--{name}", str(given[name])]
    for name in ("allow_host", "label"):
        for value in given[name]:
            options += [f"--{name.replace('_', '-')}", value]
    return options


def _tell(app: App, said: dict[str, Any]) -> None:
    from corral.cli.commands.recover import COLUMNS
    from corral.cli.render import write_line, write_table
    from corral.domain.runs.model import Found

    if said["found"] and not app.json:
        import msgspec

        write_line("It found these runs left behind:")
        write_table([msgspec.convert(one, Found) for one in said["found"]], COLUMNS)
    app.say(f"Corral is up (pid {said['daemon']['pid']}): {said['link']}", said)


def _record(daemon: daemon_process.Daemon) -> dict[str, Any]:
    return {"daemon": daemon, "link": daemon.link, "found": []}


def _why_not(said: dict[str, Any], log: str) -> CorralError:
    error = said.get("error")
    if error is None:
        return Refused(f"The daemon ended before it began; {log} tells why.", log=log)
    return raised_elsewhere(**error)


def _service(app: App, options: list[str], *, install: bool) -> int:
    from corral.adapters import units

    store, address = app.store_here.db.url, app.store_here.address
    app.close()
    unit = units.of(store)
    if install:
        told = unit.install(daemon_process.command(options), units.kept_environment(address))
    else:
        told = unit.uninstall()
    app.say(told.sentence, told)
    return 0
