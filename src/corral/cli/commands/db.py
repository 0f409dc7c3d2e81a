from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from corral import config
from corral.cli import render
from corral.cli.app import DURATION, App, Noun, pass_app, sure
from corral.kernel.clock import format_duration
from corral.kernel.errors import StoreUnavailable

FINDINGS = [
    ("CHECK", lambda finding: finding.check),
    ("STATE", lambda finding: finding.state),
    ("FOUND", lambda finding: finding.message),
]


@click.group("db", cls=Noun, help="The store: check, back up, restore, move, query, prune.")
def command() -> None:
    pass


def busy(app: App, what: str) -> AbstractContextManager[Any]:
    """A sign of life on the terminal while something long goes on."""
    shown = render.console(stderr=True)
    return shown.status(what) if shown.is_terminal and not app.json else nullcontext()


@command.command()
@pass_app
def migrate(app: App) -> None:
    """Bring the store's schema up to date; a SQLite file is copied first."""
    store = app.open_for_upgrade()
    applied = store.db.migrate()
    version = store.db.schema_version()
    text = f"applied {', '.join(map(str, applied))}" if applied else "there was nothing to do"
    app.say(
        f"{store.db.url} has schema {version}: {text}.", {"applied": applied, "version": version}
    )


def _report(app: App, findings: list[Any]) -> int:
    app.show_all(findings, FINDINGS, empty="")
    return 1 if any(finding.state == "broken" for finding in findings) else 0


@command.command()
@pass_app
def check(app: App) -> int:
    """A quick look at the store."""
    return _report(app, app.store.db.check())


@command.command()
@pass_app
def verify(app: App) -> int:
    """A thorough look at every page and row, and at the files that belong to them.

    While others go on writing. Exit code 1 when something is broken; a warning is something that is
    left over, and hurts nobody.
    """
    with render.progress_by_part("Looking at", quiet=app.json) as told:
        afar = config.is_afar(app.store.address)
        findings = app.store.db.verify() if afar else app.store.db.verify(told=told)
    return _report(app, findings)


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@pass_app
def backup(app: App, file: Path) -> None:
    """Write the whole store into FILE, while others go on working.

    Files in the home (what runs wrote, attachments, worktrees) are not in it: copy them, too.
    """
    from corral.api.store import trouble_with

    with busy(app, "Copying …"):
        written = app.store.db.backup(file)
    size = written.stat().st_size
    runs = config.home() / "runs"
    has_files = app.store.db.path is not None and runs.is_dir()  # a server has them in the store
    beside = f" What runs wrote is in {runs}; copy that, too." if has_files else ""
    app.say(
        f"{written} holds the whole store ({size:,} bytes).{beside}",
        {"file": str(written), "bytes": size},
    )
    if trouble := trouble_with(written):
        also = "Take it out of the store, too, and its next back-up is sound by itself."
        app.warn("strange_schema", f"{trouble} {also}", file=str(written))


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_app
def restore(app: App, file: Path, yes: bool) -> None:
    """Replace all that the store holds by what is in FILE."""
    from corral.api.store import backup_at

    backup_at(file)  # first: a store that is not there yet is made by opening it
    if _is_damaged(app):
        from corral.api.store import replace_damaged

        app.close()
        kept: Path | None = replace_damaged(app.url, file)
    else:
        if not yes and app.store.events.newest(limit=1).items:
            sure(f"Replace all that {app.store.db.url} holds?")
        with busy(app, "Restoring …"):
            kept = app.store.db.restore(file)
    before = f" What it held before is in {kept}." if kept else ""
    app.say(
        f"{app.store.db.url} holds what was in {file}.{before}",
        {"kept": str(kept) if kept else None},
    )


def _is_damaged(app: App) -> bool:
    """Whether the store's file is past reading; then nothing is lost by replacing it."""
    try:
        findings = app.store.db.check()
    except StoreUnavailable as error:
        if error.reason != "corrupt":
            raise
        return True
    return any(finding.check == "file" and finding.state == "broken" for finding in findings)


@command.command()
@click.argument("url", required=False)
@click.option("--cancel", is_flag=True, help="Give up a move that was not switched yet.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_app
def move(app: App, url: str | None, cancel: bool, yes: bool) -> None:
    """Move everything to the store at URL, on either engine, and use that from then on."""
    if (url is None) != cancel:
        raise click.UsageError("Give the URL of the new store, or --cancel.")
    if url is None:
        said = "It stays here" if app.store.db.stay() else "It is not on its way anywhere"
        app.say(f"{said}; everybody may write to {app.store.db.url}.", {"url": app.store.db.url})
        return
    if not yes:
        sure(f"Move all that {app.store.db.url} holds, and shut it?")
    before = app.store.db.url
    try:
        with render.progress_by_part(f"Moving {before}", quiet=app.json) as told:
            moved = app.store.db.move(url, told=told)
    except KeyboardInterrupt:
        click.echo(
            "corral: the move was cut short, and a store on its way takes no writes; go on with "
            "the same command, or stay with `corral db move --cancel`.",
            err=True,
        )
        raise
    app.close()
    app.say(
        f"{moved.url} holds all {moved.rows:,} rows of {moved.tables} tables, compared row by row; "
        f"{before} points there.",
        moved,
    )


@command.command()
@click.argument("query")
@click.option("--limit", type=int, default=1_000, show_default=True, help="Rows at the most.")
@click.option("--timeout", type=DURATION, default="5s", show_default=True, help="Time at the most.")
@pass_app
def sql(app: App, query: str, limit: int, timeout: int) -> None:
    """Ask the store in SQL, read-only; docs/schema.md describes the tables."""
    table = app.store.db.sql(query, limit=limit, timeout_ms=timeout)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    columns = [
        (name, lambda row, name=name: "NULL" if row[name] is None else row[name])
        for name in table.columns
    ]
    app.show_all(rows, columns, empty="No rows.")
    if table.truncated:
        click.echo(f"Only the first {limit} rows are shown; see --limit.", err=True)


@command.command()
@click.option("--dry-run", is_flag=True, help="Only count.")
@pass_app
def prune(app: App, dry_run: bool) -> None:
    """Forget what is older than its setting says (`corral setting list`).

    A project may have chosen a time for what belongs to it (`corral setting set runs.keep_ms 7d
    --project DIR`); it has a line of its own then.
    """
    with busy(app, "Looking for what is old …"):
        pruned = app.store.db.prune(dry_run=dry_run)
    columns = [
        ("TABLE", lambda row: row.table),
        ("WOULD GO" if dry_run else "GONE", lambda row: row.rows),
        ("KEPT FOR", lambda row: format_duration(row.keep_ms)),
    ]
    if any(row.project_id for row in pruned):
        columns.append(("PROJECT", lambda row: row.project_id or ""))
    app.show_all(pruned, columns, empty="")


@command.command()
@click.argument("wanted", required=False, type=click.Choice(["normal", "full"]))
@pass_app
def durability(app: App, wanted: str | None) -> None:
    """What an accepted change survives: any process's death (normal), also a power cut (full)."""
    now = app.store.db.durability(wanted)
    app.say(f"Durability is {now}.", {"durability": now})
