"""`corral lock`: lock files, and install hooks that enforce locks."""

import os
from collections.abc import Callable
from typing import Any

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column, Columns
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION
from corral.cli.render import format_age, format_clock


def _columns(app: App) -> Columns:
    return [
        Column("ID", lambda lock: lock.id),
        Column("PATH", lambda lock: lock.path, shrink="truncate"),
        Column("STATE", lambda lock: lock.state, is_state=True),
        Column("MODE", lambda lock: lock.mode),
        Column("OWNER", lambda lock: lock.owner, drop=2),
        Column("UNTIL", lambda lock: format_age(lock.ended_at or lock.lease_until)),
        Column("RUN", lambda lock: lock.run_id),
        Column("PROJECT", lambda lock: app.project_name(lock.project_id), drop=3),
        Column("REASON", lambda lock: lock.reason, shrink="truncate", drop=1),
    ]


TOUCHES = [
    Column("PATH", lambda touch: touch.path, shrink="truncate"),
    Column("OWNER", lambda touch: touch.owner, drop=1),
    Column("CHANGES", lambda touch: touch.count),
    Column("LAST", lambda touch: format_age(touch.last_at)),
    Column("FIRST", lambda touch: format_age(touch.first_at)),
]

BLOCKING_LOCKS = [
    Column("PATH", lambda blocker: blocker.path, shrink="truncate"),
    Column("LOCK", lambda blocker: blocker.lock.id),
    Column("OWNER", lambda blocker: blocker.lock.owner, drop=1),
    Column("UNTIL", lambda blocker: format_age(blocker.lock.lease_until)),
]

INSTALLED = [
    Column("TARGET", lambda hook: hook.target, shrink="truncate"),
    Column("RESULT", lambda hook: hook.did),
    Column("PATH", lambda hook: hook.file, shrink="truncate"),
    Column("NOTE", lambda hook: hook.note),
]

CONFLICTS = [
    Column("ONE", lambda clash: clash.one.owner or clash.one.branch or clash.one.folder),
    Column("OTHER", lambda clash: clash.other.owner or clash.other.branch or clash.other.folder),
    Column("FILES", lambda clash: len(clash.files)),
    Column("PATH", lambda clash: " ".join(clash.files), shrink="truncate"),
]


@click.group("lock", cls=CommandGroup, help="Lock files, and install hooks that enforce locks.")
def command() -> None:
    pass


def _report_held(app: App, lock: Any) -> None:
    until = format_clock(lock.lease_until)
    app.report(f"Acquired {lock.path} until {until} ({lock.id}).", lock)


def resolve_path(app: App, project: str | None, path: str) -> tuple[str, str]:
    """Return the project id and the path within it.

    Without a project, `path` is relative to the working directory; else to the project.
    """
    if project is None:
        place = app.store.guard.locate(os.path.join(os.getcwd(), path) if path else os.getcwd())
        # `locate` drops the trailing slash, which means "everything below" in a pattern.
        return place.project.id, place.path + ("/" if path.endswith("/") else "")
    return str(app.project_id(project)), path


owner_option = click.option(
    "--agent", metavar="NAME", help="Owner of the lock (default: the caller)."
)
project_option = click.option(
    "--project",
    metavar="ID|DIR",
    help="Project, by id, directory or name (default: that of the current directory).",
)
timeout_option = click.option(
    "--timeout", type=DURATION, help="Maximum time to wait (default: no limit)."
)


def lock_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a new lock."""
    for add_option in (
        click.option("--reason", help="Purpose of the lock, shown to others."),
        click.option(
            "--ttl",
            type=DURATION,
            default="5m",
            show_default=True,
            help="Time until the lock expires unless renewed.",
        ),
        click.option(
            "--shared", is_flag=True, help="Acquire a shared lock instead of an exclusive one."
        ),
        owner_option,
        project_option,
    ):
        function = add_option(function)
    return function


def _lock_request(app: App, path: str, options: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the positional and keyword arguments of `locks.acquire` and `locks.request`."""
    project, relative = resolve_path(app, options["project"], path)
    return [project, relative, app.acting_owner(options["agent"])], {
        "mode": "shared" if options["shared"] else "exclusive",
        "ttl_ms": options["ttl"],
        "reason": options["reason"],
        "run": app.caller.run,
    }


@command.command(
    examples=[
        "corral lock acquire src/login.py",
        "corral lock acquire 'src/**/*.py' --wait --timeout 10m --reason refactoring",
    ]
)
@click.argument("path")
@lock_options
@click.option("--wait", is_flag=True, help="Wait in the queue until the lock is granted.")
@timeout_option
@pass_app
def acquire(app: App, /, path: str, wait: bool, timeout: int | None, **options: Any) -> None:
    """Lock PATH: a file, a directory, or a pattern such as 'src/**/*.py'.

    Exits with 4 if another owner holds a conflicting lock.
    """
    request, attributes = _lock_request(app, path, options)
    lock = app.store.locks.acquire(*request, wait=wait, timeout_ms=timeout, **attributes)
    _report_held(app, lock)


@command.command()
@click.argument("path")
@lock_options
@click.option(
    "--timeout",
    type=DURATION,
    default="30m",
    show_default=True,
    help="Time to stay in the queue.",
)
@pass_app
def request(app: App, /, path: str, timeout: int, **options: Any) -> None:
    """Lock PATH, or join the queue without waiting. A letter reports when the lock is granted."""
    request, attributes = _lock_request(app, path, options)
    lock = app.store.locks.request(*request, wait_ms=timeout, **attributes)
    if lock.state == "held":
        _report_held(app, lock)
    else:
        app.report(
            f"Queued for {lock.path} ({lock.id}). Wait for it with `corral lock wait {lock.id}`.",
            lock,
        )


@command.command()
@click.argument("lock")
@timeout_option
@pass_app
def wait(app: App, lock: str, timeout: int | None) -> None:
    """Wait until a queued lock is granted."""
    _report_held(app, app.store.locks.wait(lock, timeout_ms=timeout))


@command.command()
@click.argument("lock")
@owner_option
@click.option(
    "--ttl", type=DURATION, help="Time until the lock expires (default: its previous one)."
)
@pass_app
def renew(app: App, lock: str, agent: str | None, ttl: int | None) -> None:
    """Renew a held or queued lock."""
    renewed = app.store.locks.renew(lock, agent=app.acting_owner(agent), ttl_ms=ttl)
    until = format_clock(renewed.lease_until)
    app.report(f"Renewed {renewed.id} until {until}; it is {renewed.state}.", renewed)


@command.command()
@click.argument("locks", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Release all your locks.")
@owner_option
@pass_app
def release(app: App, locks: tuple[str, ...], all_: bool, agent: str | None) -> None:
    """Release locks, or leave the queue."""
    owner = app.acting_owner(agent)
    if bool(locks) == all_:
        raise click.UsageError("Give the locks to release, or --all.")
    if all_:
        released = []
        while page := app.store.locks.list(agent=owner, limit=200).items:
            released += [app.store.locks.release(lock, agent=owner) for lock in page]
        app.show_list(released, _columns(app), empty=f"{owner} has no locks.")
        return
    released = [app.store.locks.release(lock, agent=owner) for lock in locks]
    app.report(
        " ".join(f"{lock.id} is {lock.state}." for lock in released),
        released[0] if len(released) == 1 else released,
    )


@command.command()
@click.argument("lock")
@click.option("--reason", required=True, help="Reason, sent to the owner.")
@pass_app
def revoke(app: App, lock: str, reason: str) -> None:
    """Revoke a lock of another owner. Only people can do this."""
    revoked = app.store.locks.revoke(lock, reason=reason)
    app.report(f"Revoked {revoked.id} of {revoked.owner}.", revoked)


@command.command("list")
@click.option("--project", metavar="ID|DIR", help="Only list locks of this project.")
@click.option("--agent", metavar="NAME", help="Only list locks of this owner.")
@click.option("--all", "all_", is_flag=True, help="Include locks that have ended, newest first.")
@paging_options
@pass_app
def list_(
    app: App, project: str | None, agent: str | None, all_: bool, after: str | None, limit: int
) -> None:
    """List held and queued locks, by path."""
    page = app.store.locks.list(
        project=app.project_id(project), agent=agent, all=all_, after=after, limit=limit
    )
    app.show_page(
        page, _columns(app), empty="No locks. Acquire one with `corral lock acquire PATH`."
    )


@command.command()
@click.argument("lock")
@pass_app
def show(app: App, lock: str) -> None:
    """Show a lock."""
    app.show(app.store.locks.get(lock))


@command.command()
@click.argument("path")
@project_option
@pass_app
def holders(app: App, path: str, project: str | None) -> None:
    """List the locks on PATH, or on anything that it covers."""
    locks = app.store.locks.holders(*resolve_path(app, project, path))
    app.show_list(locks, _columns(app), empty=f"{path} is not locked.")


@command.command()
@click.argument("paths", nargs=-1, required=True)
@project_option
@click.option("--agent", metavar="NAME", help="Owner to check for (default: the caller).")
@pass_app
def check(app: App, paths: tuple[str, ...], project: str | None, agent: str | None) -> int:
    """Check whether you may change PATHS.

    Exits with 4 if another owner holds a lock on any of them.
    """
    owner = app.acting_owner(agent)
    blockers = []
    for path in paths:
        project_id, relative = resolve_path(app, project, path)
        blockers += app.store.guard.check(project_id, [relative], owner, run=app.caller.run)
    app.show_list(blockers, BLOCKING_LOCKS, empty="No other owner holds a lock on these paths.")
    return 4 if blockers else 0


@command.command()
@click.argument("path", default="")
@project_option
@click.option("--agent", metavar="NAME", help="Only list changes of this owner.")
@paging_options
@pass_app
def touches(app: App, /, path: str, project: str | None, **options: Any) -> None:
    """List who changed PATH or the files below it, and how often."""
    project_id, relative = resolve_path(app, project, path or ("." if project else ""))
    page = app.store.locks.touches(project_id, relative, **options)
    app.show_page(
        page,
        TOUCHES,
        empty="No recorded changes. Record them with the hooks of `corral lock install`.",
    )


target_option = click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="NAME",
    help="git, claude, codex, copilot or gemini. Repeatable (default: git and claude).",
)


@command.command()
@click.argument("folder", metavar="[DIR]", default=".")
@target_option
@pass_app
def install(app: App, folder: str, targets: tuple[str, ...]) -> None:
    """Install hooks in DIR that reject edits and commits of files locked by another owner.

    DIR is the current directory by default."""
    hooks = app.store.locks.install(folder, targets=targets)
    app.show_list(hooks, INSTALLED, empty="Nothing to install.")


@command.command()
@click.argument("folder", metavar="[DIR]", default=".")
@target_option
@pass_app
def uninstall(app: App, folder: str, targets: tuple[str, ...]) -> None:
    """Remove the hooks from DIR (default: the current directory); other content is kept."""
    hooks = app.store.locks.uninstall(folder, targets=targets)
    app.show_list(hooks, INSTALLED, empty="Nothing to remove.")


@command.command()
@click.argument("folder", metavar="[DIR]", default=".")
@click.option(
    "--notify",
    "notify",
    is_flag=True,
    help="Send a letter to both owners, once per conflict.",
)
@pass_app
def conflicts(app: App, folder: str, notify: bool) -> int:
    """List the worktrees of the repository in DIR that would conflict if merged now.

    DIR is the current directory by default.

    Exits with 1 if there are conflicts.
    """
    clashes = app.store.locks.forecast(folder, notify=notify)
    app.show_list(clashes, CONFLICTS, empty="All worktrees can be merged without conflicts.")
    return 1 if clashes else 0
