"""`corral status`: the daemon of this machine, its loops, and the other machines."""

from typing import Any

import click

from corral.adapters import daemon_process
from corral.cli.app import App, Verb, pass_app
from corral.cli.render import ago, moment, write_line, write_table

LOOPS = [
    ("LOOP", lambda loop: loop["name"]),
    ("STATE", lambda loop: loop["state"]),
    ("LED BY", lambda loop: _daemon(loop["leader"]) or "each machine"),
    ("DONE", lambda loop: loop["done"]),
    ("WORKED", lambda loop: _age(loop["worked_at"])),
    ("ERRORS", lambda loop: loop["errors"]),
    ("LAST ERROR", lambda loop: loop["error"]),
]
LEADERS = [
    ("LOOP", lambda lead: lead.name),
    ("LED BY", lambda lead: _daemon(lead.owner)),
]


def _daemon(owner: str | None) -> str | None:
    """The machine and process in `daemon:HOST:PID:START`."""
    words = (owner or "").rsplit(":", 2)
    if len(words) != 3:
        return owner
    return f"{words[0].removeprefix('daemon:')} (pid {words[1]})"


@click.command("status", cls=Verb)
@pass_app
def command(app: App) -> int:
    """Is a daemon up, do its loops work, and which machines serve this store?

    The exit code is 1 when no daemon serves this store from this home, or it does not answer.
    """
    store = app.store_here
    daemon = daemon_process.find(store.db.url)
    told = daemon_process.ask(daemon) if daemon is not None else None
    nodes = store.nodes.list(limit=50).items
    leaders = [lead for lead in store.nodes.leaders() if lead.lease_until > store.now()]
    if app.json:
        app.show({"daemon": daemon, "health": told, "nodes": nodes, "leaders": leaders})
    else:
        _write(daemon, told, nodes, leaders)
    return 0 if told is not None and "error" not in told else 1


def _write(
    daemon: daemon_process.Daemon | None, told: dict[str, Any] | None, nodes: Any, leaders: Any
) -> None:
    from corral.cli.commands.node import COLUMNS

    if daemon is None:
        write_line("No daemon of this home serves this store; `corral up` starts one.")
    elif told is None:
        write_line(f"The daemon (pid {daemon.pid}) does not answer at {daemon.url}.")
    else:
        write_line(f"Up since {moment(daemon.started_at)} (pid {daemon.pid}): {daemon.link}")
    if told is not None and "error" in told:
        write_line(f"It is not well: {told['error']['message']}")
    status = (told or {}).get("status")
    if status is not None:
        if status["trouble"]:
            write_line(f"It cannot renew its place: {status['trouble']}")
        write_table(status["loops"], LOOPS)
    elif leaders:
        write_table(leaders, LEADERS)
    if nodes:
        write_line("")
        write_table(nodes, COLUMNS)


def _age(at: int | None) -> str | None:
    return None if at is None else ago(at)
