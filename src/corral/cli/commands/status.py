"""`corral status`: the daemon of this machine, its loops, and the nodes of the store."""

from typing import Any

import click

from corral.adapters import daemon_process
from corral.adapters.processes import process
from corral.cli.click_classes import Command
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.render import format_age, format_time, write_line, write_table

LOOPS = [
    Column("LOOP", lambda loop: loop["name"]),
    Column("STATE", lambda loop: loop["state"], is_state=True),
    Column("LEADER", lambda loop: _format_owner(loop["leader"]) or "each node"),
    Column("DONE", lambda loop: loop["done"]),
    Column("LAST", lambda loop: _age(loop["worked_at"])),
    Column("ERRORS", lambda loop: loop["errors"]),
    Column("LAST ERROR", lambda loop: loop["error"], shrink="truncate"),
]
LEADERS = [
    Column("LOOP", lambda lead: lead.name),
    Column("LEADER", lambda lead: _format_owner(lead.owner)),
]


def _format_owner(owner: str | None) -> str | None:
    """Format the owner of a lease as host and pid."""
    identity = process.parse_owner(owner)
    return owner if identity is None else f"{identity.host} (pid {identity.pid})"


@click.command("status", cls=Command)
@pass_app
def command(app: App) -> int:
    """Show the state of the daemon, its loops, and the nodes of the store.

    Exits with 1 if no daemon of this home serves the store, or if it does not answer.
    """
    store = app.local_store
    daemon = daemon_process.find_daemon(store.db.url)
    health = daemon_process.read_health(daemon) if daemon is not None else None
    nodes = store.nodes.list(limit=50).items
    leaders = [lead for lead in store.nodes.leaders() if lead.lease_until > store.now()]
    if app.json:
        app.show({"daemon": daemon, "health": health, "nodes": nodes, "leaders": leaders})
    else:
        _write(daemon, health, nodes, leaders)
    return 0 if health is not None and "error" not in health else 1


def _write(
    daemon: daemon_process.Daemon | None, health: dict[str, Any] | None, nodes: Any, leaders: Any
) -> None:
    from corral.cli.commands.node import COLUMNS

    if daemon is None:
        write_line("No daemon is running for this store and home. Start one with `corral up`.")
    elif health is None:
        write_line(f"The daemon (pid {daemon.pid}) does not answer at {daemon.url}.")
    else:
        write_line(f"Up since {format_time(daemon.started_at)} (pid {daemon.pid}): {daemon.link}")
    if health is not None and "error" in health:
        write_line(f"The daemon reports an error: {health['error']['message']}")
    status = (health or {}).get("status")
    if status is not None:
        if status["lease_error"]:
            write_line(f"The daemon cannot renew its lease: {status['lease_error']}")
        write_table(status["loops"], LOOPS)
    elif leaders:
        write_table(leaders, LEADERS)
    if nodes:
        write_line("")
        write_table(nodes, COLUMNS)


def _age(at: int | None) -> str | None:
    return None if at is None else format_age(at)
