import os
from collections.abc import Callable
from typing import Any

import click

from corral import config
from corral.cli.app import DURATION, App, Columns, Noun, paging, pass_app
from corral.cli.render import ago
from corral.kernel.errors import Refused


def _columns(app: App) -> Columns:
    return [
        ("ID", lambda lock: lock.id),
        ("PATH", lambda lock: lock.path),
        ("STATE", lambda lock: lock.state),
        ("MODE", lambda lock: lock.mode),
        ("OWNER", lambda lock: lock.owner),
        ("UNTIL", lambda lock: ago(lock.ended_at or lock.lease_until)),
        ("RUN", lambda lock: lock.run_id),
        ("PROJECT", lambda lock: app.project_name(lock.project_id)),
        ("REASON", lambda lock: lock.reason),
    ]


TOUCHES = [
    ("PATH", lambda touch: touch.path),
    ("OWNER", lambda touch: touch.owner),
    ("CHANGES", lambda touch: touch.count),
    ("LAST", lambda touch: ago(touch.last_at)),
    ("FIRST", lambda touch: ago(touch.first_at)),
]

IN_THE_WAY = [
    ("PATH", lambda found: found.path),
    ("LOCK", lambda found: found.lock.id),
    ("OWNER", lambda found: found.lock.owner),
    ("UNTIL", lambda found: ago(found.lock.lease_until)),
]


INSTALLED = [
    ("TARGET", lambda one: one.target),
    ("DID", lambda one: one.did),
    ("PATH", lambda one: one.file),
    ("NOTE", lambda one: one.note),
]


CLASHES = [
    ("ONE", lambda clash: clash.one.owner or clash.one.branch or clash.one.folder),
    ("OTHER", lambda clash: clash.other.owner or clash.other.branch or clash.other.folder),
    ("FILES", lambda clash: len(clash.files)),
    ("PATH", lambda clash: " ".join(clash.files)),
]


@click.group("lock", cls=Noun, help="Locks on files: take, wait, release; hooks that keep to them.")
def command() -> None:
    pass


def _left(lock: Any) -> str:
    """How long a lock lasts if nobody renews it."""
    return ago(lock.lease_until).removeprefix("in ")


def owner_of(app: App, agent: str | None) -> str:
    """Who acts: whom the environment says, or whom a person names."""
    me = config.owner()
    if agent is None or agent in (me, me.removeprefix("agent:")):
        return me
    if not me.startswith("user:"):
        raise Refused(f"You are {me} and cannot act as {agent}; leave --agent out.", agent=agent)
    return agent


def place_of(app: App, project: str | None, path: str) -> tuple[str, str]:
    """The project and the path that somebody typed: seen from here where here is in the project,
    else from the project."""
    if project is None:
        place = app.store.guard.place_of(os.path.join(os.getcwd(), path) if path else os.getcwd())
        # Joined again by hand: the end of what was typed may be a pattern or a slash.
        return place.project.id, place.path + ("/" if path.endswith("/") else "")
    return str(app.project_id(project)), path


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--reason", help="What it is for; others see it."),
        click.option("--ttl", type=DURATION, default="5m", show_default=True, help="For how long."),
        click.option("--shared", is_flag=True, help="Together with others who hold it shared."),
        click.option("--agent", metavar="NAME", help="Whose lock; as the environment says."),
        click.option(
            "--project", metavar="ID", help="A project, by id, directory or name; this one."
        ),
    ):
        function = option(function)
    return function


def _wanted(app: App, path: str, given: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    project, where = place_of(app, given["project"], path)
    return [project, where, owner_of(app, given["agent"])], {
        "mode": "shared" if given["shared"] else "exclusive",
        "ttl_ms": given["ttl"],
        "reason": given["reason"],
        "run": config.run_id(),
    }


@command.command()
@click.argument("path")
@options
@click.option("--wait", is_flag=True, help="Wait in line until it is free.")
@click.option("--timeout", type=DURATION, help="Wait no longer than that.")
@pass_app
def acquire(app: App, /, path: str, wait: bool, timeout: int | None, **given: Any) -> None:
    """Lock PATH: a file, a folder, or a pattern such as 'src/**/*.py'."""
    who, how = _wanted(app, path, given)
    lock = app.store.locks.acquire(*who, wait=wait, timeout_ms=timeout, **how)
    app.say(f"{lock.path} is yours for {_left(lock)} ({lock.id}).", lock)


@command.command()
@click.argument("path")
@options
@click.option("--for", "patience", type=DURATION, default="30m", help="Keep the place so long.")
@pass_app
def request(app: App, /, path: str, patience: int, **given: Any) -> None:
    """Lock PATH, or stand in line for it without waiting; a letter tells when it is yours."""
    who, how = _wanted(app, path, given)
    lock = app.store.locks.request(*who, wait_ms=patience, **how)
    if lock.state == "held":
        app.say(f"{lock.path} is yours for {_left(lock)} ({lock.id}).", lock)
    else:
        app.say(f"{lock.id} waits for {lock.path}; `corral lock wait {lock.id}` waits too.", lock)


@command.command()
@click.argument("lock")
@click.option("--timeout", type=DURATION, help="Wait no longer than that.")
@pass_app
def wait(app: App, lock: str, timeout: int | None) -> None:
    """Wait until a lock in line is granted."""
    held = app.store.locks.wait(lock, timeout_ms=timeout)
    app.say(f"{held.path} is yours for {_left(held)} ({held.id}).", held)


@command.command()
@click.argument("lock")
@click.option("--agent", metavar="NAME", help="Whose lock; as the environment says.")
@click.option("--ttl", type=DURATION, help="For how long; as before.")
@pass_app
def renew(app: App, lock: str, agent: str | None, ttl: int | None) -> None:
    """Keep a lock, or a place in line, for longer."""
    renewed = app.store.locks.renew(lock, agent=owner_of(app, agent), ttl_ms=ttl)
    app.say(f"{renewed.id} is {renewed.state} for {_left(renewed)}.", renewed)


@command.command()
@click.argument("locks", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Everything that you have.")
@click.option("--agent", metavar="NAME", help="Whose lock; as the environment says.")
@pass_app
def release(app: App, locks: tuple[str, ...], all_: bool, agent: str | None) -> None:
    """Give locks back, or leave the line."""
    me = owner_of(app, agent)
    if bool(locks) == all_:
        raise click.UsageError("Give the locks to release, or --all.")
    if all_:
        released = []
        while mine := app.store.locks.list(agent=me, limit=200).items:
            released += [app.store.locks.release(lock) for lock in mine]
        app.show_all(released, _columns(app), empty=f"{me} has no locks.")
        return
    released = [app.store.locks.release(lock, agent=me) for lock in locks]
    app.say(
        " ".join(f"{lock.id} is {lock.state}." for lock in released),
        released[0] if len(released) == 1 else released,
    )


@command.command()
@click.argument("lock")
@click.option("--reason", required=True, help="Its owner is told.")
@pass_app
def revoke(app: App, lock: str, reason: str) -> None:
    """Take a lock away from its owner; for people."""
    revoked = app.store.locks.revoke(lock, reason=reason)
    app.say(f"{revoked.id} is taken from {revoked.owner}.", revoked)


@command.command("list")
@click.option("--project", metavar="ID", help="Of this project, by id, directory or name.")
@click.option("--agent", metavar="NAME", help="Of this owner.")
@click.option("--all", "all_", is_flag=True, help="Also locks that have ended, newest first.")
@paging
@pass_app
def list_(
    app: App, project: str | None, agent: str | None, all_: bool, after: str | None, limit: int
) -> None:
    """Locks that are held or waited for, by path."""
    page = app.store.locks.list(
        project=app.project_id(project), agent=agent, all=all_, after=after, limit=limit
    )
    app.show_page(
        page, _columns(app), empty="Nothing is locked; `corral lock acquire PATH` does it."
    )


@command.command()
@click.argument("lock")
@pass_app
def show(app: App, lock: str) -> None:
    """One lock, by its id."""
    app.show(app.store.locks.get(lock))


@command.command()
@click.argument("path")
@click.option("--project", metavar="ID", help="A project, by id, directory or name; this one.")
@pass_app
def holders(app: App, path: str, project: str | None) -> None:
    """Who holds PATH, or anything that it covers."""
    held = app.store.locks.holders(*place_of(app, project, path))
    app.show_all(held, _columns(app), empty=f"Nobody holds {path}.")


@command.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("--project", metavar="ID", help="A project, by id, directory or name; this one.")
@click.option("--agent", metavar="NAME", help="For whom; as the environment says.")
@pass_app
def check(app: App, paths: tuple[str, ...], project: str | None, agent: str | None) -> int:
    """Whether you may change PATHS, or somebody else holds them; the exit code says it too."""
    me = owner_of(app, agent)
    found = []
    for path in paths:
        where, there = place_of(app, project, path)
        found += app.store.guard.in_the_way(where, [there], me, run=config.run_id())
    app.show_all(found, IN_THE_WAY, empty="Nothing is in your way.")
    return 4 if found else 0


@command.command()
@click.argument("path", default="")
@click.option("--project", metavar="ID", help="A project, by id, directory or name; this one.")
@click.option("--agent", metavar="NAME", help="Only of this owner.")
@paging
@pass_app
def touches(app: App, /, path: str, project: str | None, **given: Any) -> None:
    """Who knows PATH: who changed it, or the files below it, and how often."""
    where, there = place_of(app, project, path or ("." if project else ""))
    page = app.store.locks.touches(where, there, **given)
    app.show_page(page, TOUCHES, empty="No change of a file is known; the hooks note them.")


def target_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--for",
        "targets",
        multiple=True,
        metavar="NAME",
        help="git, claude, codex, copilot or gemini; several times for several.",
    )(function)


@command.command()
@click.argument("folder", default=".")
@target_option
@pass_app
def install(app: App, folder: str, targets: tuple[str, ...]) -> None:
    """Set up hooks in FOLDER that refuse changes of what others hold: git and claude."""
    did = app.store.locks.install(folder, targets=targets)
    app.show_all(did, INSTALLED, empty="Nothing was to do.")


@command.command()
@click.argument("folder", default=".")
@target_option
@pass_app
def uninstall(app: App, folder: str, targets: tuple[str, ...]) -> None:
    """Take the hooks out of FOLDER again; all else in their files stays."""
    did = app.store.locks.uninstall(folder, targets=targets)
    app.show_all(did, INSTALLED, empty="Nothing was to do.")


@command.command()
@click.argument("folder", default=".")
@click.option("--tell", is_flag=True, help="Write a letter to both owners, once.")
@pass_app
def forecast(app: App, folder: str, tell: bool) -> int:
    """Which worktrees of the repository in FOLDER would conflict if they were merged now."""
    clashes = app.store.locks.forecast(folder, tell=tell)
    app.show_all(clashes, CLASHES, empty="All worktrees can be merged as they are.")
    return 1 if clashes else 0
