from typing import Any

import click

from corral.interfaces.cli.app import App, Noun, paging, pass_app
from corral.interfaces.cli.render import ago
from corral.kernel.errors import Invalid

COLUMNS = [
    ("ID", lambda channel: channel.id),
    ("NAME", lambda channel: channel.name),
    ("KIND", lambda channel: channel.kind),
    ("STATE", lambda channel: channel.state),
    ("STRANGERS", lambda channel: channel.policy),
    ("LOOKED AT", lambda channel: ago(channel.looked_at) if channel.looked_at else None),
    ("TROUBLE", lambda channel: channel.trouble),
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
    """Connect a channel under NAME: terminal, webhook, matrix, telegram, slack, or another KIND
    that is installed."""
    made = app.store.channels.add(
        name,
        kind,
        config=_pairs(config, "--set"),
        secrets=_pairs(secrets, "--secret"),
        policy=policy,
        in_doubt=in_doubt,
    )
    app.say(f"{made.name} is added ({made.id}); `corral channel test {made.name}` tries it.", made)


def _pairs(given: tuple[str, ...], option: str) -> dict[str, Any]:
    pairs = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise Invalid(f"{option} wants NAME=VALUE, not {each!r}.", value=each)
        pairs[name] = value
    return pairs


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Also removed ones.")
@paging
@pass_app
def list_(app: App, all_: bool, after: str | None, limit: int) -> None:
    """Channels, and whether they could be reached when they were last looked at."""
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
