import click

from corral.cli.app import App, Noun, paging, pairs, pass_app
from corral.cli.render import ago

COLUMNS = [
    ("NAME", lambda channel: channel.name),
    ("KIND", lambda channel: channel.kind),
    ("STATE", lambda channel: channel.state),
    ("STRANGERS", lambda channel: channel.policy),
    ("LOOKED AT", lambda channel: ago(channel.looked_at) if channel.looked_at else None),
    ("TROUBLE", lambda channel: channel.trouble),
    ("ID", lambda channel: channel.id),
]


@click.group("channel", cls=Noun, help="Chat platforms that agents are reached by.")
def command() -> None:
    pass


@command.command()
@click.argument("name")
@click.argument("kind")
@click.option("--set", "config", multiple=True, metavar="NAME=VALUE", help="Part of its set-up.")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME=SECRET",
    help="Which `corral secret` is its token, and so on.",
)
@click.option("--policy", default="ask", show_default=True, help="Strangers: strict, ask, public.")
@click.option(
    "--in-doubt",
    default="give_up",
    show_default=True,
    help="What may have arrived and may not: give_up, or retry and perhaps show it twice.",
)
@pass_app
def add(
    app: App,
    name: str,
    kind: str,
    config: tuple[str, ...],
    secrets: tuple[str, ...],
    policy: str,
    in_doubt: str,
) -> None:
    """Connect a platform under NAME.

    KIND is terminal, web, webhook, matrix, telegram, slack, or another one that is installed.
    """
    made = app.store.channels.add(
        name,
        kind,
        config=pairs(config, "--set"),
        secrets=pairs(secrets, "--secret"),
        policy=policy,
        in_doubt=in_doubt,
    )
    app.say(
        f"{made.name} is added ({made.id}); `corral channel test {made.name}` tries it, and "
        f"`corral wiring add AGENT --channel {made.name}` lets an agent hear it.",
        made,
    )


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Also removed ones.")
@paging
@pass_app
def list_(app: App, all_: bool, after: str | None, limit: int) -> None:
    """Channels, and how they were when last looked at."""
    page = app.store.channels.list(all=all_, after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="There is no channel; `corral channel add` connects one.")


@command.command()
@click.argument("channel")
@pass_app
def show(app: App, channel: str) -> None:
    """One channel, whole; its secrets are references."""
    app.show(app.store.channels.get(channel))


@command.command()
@click.argument("channel")
@pass_app
def test(app: App, channel: str) -> int:
    """Try whether CHANNEL can be used, now; exit code 1 when not."""
    health = app.store.channels.test(channel)
    app.say(f"{health.channel} {'works' if health.ok else f'fails: {health.trouble}'}.", health)
    return 0 if health.ok else 1


@command.command()
@click.argument("channel")
@pass_app
def remove(app: App, channel: str) -> None:
    """Disconnect CHANNEL; what waited to be sent is dropped."""
    gone = app.store.channels.remove(channel)
    app.say(f"{gone.name} is removed.", gone)
