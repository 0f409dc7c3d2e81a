"""`corral channel`: connect chat platforms."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.parameters import parse_pairs
from corral.cli.render import format_age

COLUMNS = [
    Column("NAME", lambda channel: channel.name),
    Column("KIND", lambda channel: channel.kind),
    Column("STATE", lambda channel: channel.state, is_state=True),
    Column("POLICY", lambda channel: channel.policy, drop=1),
    Column(
        "CHECKED",
        lambda channel: format_age(channel.checked_at) if channel.checked_at else None,
        drop=2,
    ),
    Column("ERROR", lambda channel: channel.last_error, shrink="truncate"),
    Column("ID", lambda channel: channel.id),
]


@click.group("channel", cls=CommandGroup, help="Connect chat platforms.")
def command() -> None:
    pass


@command.command(
    examples=[
        "corral channel add team telegram --secret token=telegram-token",
        "corral channel add work matrix --config base_url=https://matrix.org --secret "
        "token=matrix-token",
    ]
)
@click.argument("name")
@click.argument("kind")
@click.option(
    "--config",
    multiple=True,
    metavar="NAME=VALUE",
    help="Configuration value of the platform. Repeatable.",
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME=SECRET",
    help="Credential of the platform, such as token, and the name of its `corral secret`. "
    "Repeatable.",
)
@click.option(
    "--policy",
    default="ask",
    show_default=True,
    help="Policy for unknown senders: strict (refuse), ask (hold) or public (accept).",
)
@click.option(
    "--on-unconfirmed",
    default="give_up",
    show_default=True,
    help="Messages whose delivery is unconfirmed: give_up, or retry (may send twice).",
)
@pass_app
def add(
    app: App,
    name: str,
    kind: str,
    config: tuple[str, ...],
    secrets: tuple[str, ...],
    policy: str,
    on_unconfirmed: str,
) -> None:
    """Connect a chat platform under NAME.

    KIND is terminal, web, webhook, matrix, telegram, slack, or another installed adapter.
    """
    channel = app.store.channels.add(
        name,
        kind,
        config=parse_pairs(config, "--config"),
        secrets=parse_pairs(secrets, "--secret"),
        policy=policy,
        on_unconfirmed=on_unconfirmed,
    )
    app.report(
        f"Added channel {channel.name} ({channel.id}). Test it with `corral channel test "
        f"{channel.name}`, and connect an agent with `corral wiring add AGENT --channel "
        f"{channel.name}`.",
        channel,
    )


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Include removed channels.")
@paging_options
@pass_app
def list_(app: App, all_: bool, after: str | None, limit: int) -> None:
    """List channels with the result of their last check."""
    page = app.store.channels.list(all=all_, after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No channels. Add one with `corral channel add`.")


@command.command()
@click.argument("channel")
@pass_app
def show(app: App, channel: str) -> None:
    """Show a channel. Secrets are shown as references."""
    app.show(app.store.channels.get(channel))


@command.command()
@click.argument("channel")
@pass_app
def test(app: App, channel: str) -> int:
    """Test the connection of CHANNEL; exit with 1 if it fails."""
    health = app.store.channels.test(channel)
    result = "works" if health.ok else f"failed: {health.error}"
    app.report(f"Channel {health.channel} {result}.", health)
    return 0 if health.ok else 1


@command.command()
@click.argument("channel")
@pass_app
def remove(app: App, channel: str) -> None:
    """Remove CHANNEL and its wirings; undelivered messages are dropped, and the history is kept."""
    removed = app.store.channels.remove(channel)
    app.report(f"Removed channel {removed.name}.", removed)
