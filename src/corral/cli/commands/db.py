"""`corral db`: check, back up, restore, move, query and prune the store."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click

from corral import config
from corral.cli import render
from corral.cli.click_classes import CommandGroup
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION
from corral.cli.tty import confirm
from corral.kernel.clock import format_duration
from corral.kernel.errors import StoreUnavailable

FINDINGS = [
    Column("CHECK", lambda finding: finding.check),
    Column("STATE", lambda finding: finding.state, is_state=True),
    Column("DETAIL", lambda finding: finding.message, shrink="wrap"),
]


@click.group(
    "db", cls=CommandGroup, help="Check, back up, restore, move, query and prune the store."
)
def command() -> None:
    pass


def _spinner(app: App, text: str) -> AbstractContextManager[Any]:
    """Show a spinner on a terminal during a long operation."""
    console = render.console(stderr=True)
    return console.status(text) if console.is_terminal and not app.json else nullcontext()


@command.command()
@pass_app
def migrate(app: App) -> None:
    """Migrate the store to the current schema; a SQLite file is backed up first."""
    store = app.open_unchecked()
    applied = store.db.migrate()
    version = store.db.schema_version()
    result = (
        f"Applied migrations {', '.join(map(str, applied))}." if applied else "Already up to date."
    )
    app.report(
        f"{result} {store.db.url} has schema version {version}.",
        {"applied": applied, "version": version},
    )


def _report_findings(app: App, findings: list[Any]) -> int:
    app.show_list(findings, FINDINGS, empty="")
    return 1 if any(finding.state == "broken" for finding in findings) else 0


@command.command()
@pass_app
def check(app: App) -> int:
    """Check the store quickly; exit with 1 if it is broken."""
    return _report_findings(app, app.store.db.check())


@command.command()
@pass_app
def verify(app: App) -> int:
    """Verify every page and row of the store, and the files that belong to them.

    Other processes can write during the verification. Exits with 1 if something is broken. A
    warning is a leftover that does no harm.
    """
    with render.progress_by_part("Verifying", quiet=app.json) as update:
        is_remote = config.is_remote(app.store.address)
        findings = app.store.db.verify() if is_remote else app.store.db.verify(on_progress=update)
    return _report_findings(app, findings)


@command.command(examples=["corral db backup backup.db"])
@click.argument("file", type=click.Path(path_type=Path))
@pass_app
def backup(app: App, file: Path) -> None:
    """Back up the store to FILE while other processes continue to work.

    The backup does not contain files in the home: output of runs, attachments and worktrees. Copy
    these as well.
    """

    with _spinner(app, "Copying …"):
        written = app.store.db.backup(file)
    size = written.stat().st_size
    runs = config.home() / "runs"
    has_files = app.store.db.path is not None and runs.is_dir()  # PostgreSQL stores output itself
    hint = f" The output of runs is in {runs}; copy it as well." if has_files else ""
    app.report(
        f"Backed up the store to {written} ({size:,} bytes).{hint}",
        {"file": str(written), "bytes": size},
    )
    from corral.services.store.backup import restore_problem

    if problem := restore_problem(written):
        advice = "Remove it from the store too, so that the next backup is clean."
        app.warn("strange_schema", f"{problem} {advice}", file=str(written))


@command.command(examples=["corral db restore backup.db"])
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@pass_app
def restore(app: App, file: Path, yes: bool) -> None:
    """Replace the content of the store by the backup in FILE."""
    from corral.services.store.backup import check_backup_file

    check_backup_file(file)  # validate FILE first: opening the store may create it
    if _is_damaged(app):
        from corral.api.store import replace_damaged

        app.close()
        previous: Path | None = replace_damaged(app.url, file)
    else:
        if not yes and app.store.events.newest(limit=1).items:
            confirm(f"Replace the content of {app.store.db.url}?")
        with _spinner(app, "Restoring …"):
            previous = app.store.db.restore(file)
    saved = f" The previous content is in {previous}." if previous else ""
    app.report(
        f"Restored {app.store.db.url} from {file}.{saved}",
        {"kept": str(previous) if previous else None},
    )


def _is_damaged(app: App) -> bool:
    """Return whether the store's file is unreadable, so that replacing it loses nothing."""
    try:
        findings = app.store.db.check()
    except StoreUnavailable as error:
        if error.reason != "corrupt":
            raise
        return True
    return any(finding.check == "file" and finding.state == "broken" for finding in findings)


@command.command(
    examples=[
        "corral db move postgresql://corral@db.example.org/corral",
        "corral db move sqlite:////var/lib/corral/corral.db --yes",
        "corral db move --cancel",
    ]
)
@click.argument("url", required=False)
@click.option("--cancel", is_flag=True, help="Cancel a move that is not complete.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@pass_app
def move(app: App, url: str | None, cancel: bool, yes: bool) -> None:
    """Move everything to the store at URL, on either engine, and switch to it.

    Counts, ids, order and hashes of all rows are compared before the switch.
    """
    if (url is None) != cancel:
        raise click.UsageError("Give the URL of the new store, or --cancel.")
    if url is None:
        result = "Cancelled the move" if app.store.db.cancel_move() else "No move is in progress"
        app.report(f"{result}. {app.store.db.url} accepts writes.", {"url": app.store.db.url})
        return
    if not yes:
        confirm(f"Move everything from {app.store.db.url} to {url} and close the old store?")
    before = app.store.db.url
    try:
        with render.progress_by_part(f"Moving {before}", quiet=app.json) as update:
            moved = app.store.db.move(url, on_progress=update)
    except KeyboardInterrupt:
        click.echo(
            "corral: The move was interrupted, and the store accepts no writes. Continue with the "
            "same command, or cancel with `corral db move --cancel`.",
            err=True,
        )
        raise
    app.close()
    app.report(
        f"Moved and compared {moved.rows:,} rows of {moved.tables} tables to {moved.url}. {before} "
        "redirects to it.",
        moved,
    )


@command.command(
    examples=['corral db sql "SELECT state, count(*) FROM runs GROUP BY state" --json']
)
@click.argument("query")
@click.option("--limit", type=int, default=1_000, show_default=True, help="Maximum number of rows.")
@click.option(
    "--timeout", type=DURATION, default="5s", show_default=True, help="Maximum time for the query."
)
@pass_app
def sql(app: App, query: str, limit: int, timeout: int) -> None:
    """Run a read-only SQL query; docs/reference/schema.md describes the tables."""
    table = app.store.db.sql(query, limit=limit, timeout_ms=timeout)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    columns = [Column(name, partial(_sql_cell, name)) for name in table.columns]
    app.show_list(rows, columns, empty="No rows.")
    if table.truncated:
        click.echo(f"Only the first {limit} rows are shown. Change this with --limit.", err=True)


def _sql_cell(column: str, row: dict[str, Any]) -> object:
    return "NULL" if row[column] is None else row[column]


@command.command()
@click.option("--dry-run", is_flag=True, help="Only count the rows.")
@pass_app
def prune(app: App, dry_run: bool) -> None:
    """Delete data that is older than its retention setting (`corral setting list`).

    A project can have its own retention, such as `corral setting set runs.retention_ms 7d --project
    DIR`; it is listed separately.
    """
    with _spinner(app, "Pruning …"):
        pruned = app.store.db.prune(dry_run=dry_run)
    columns = [
        Column("TABLE", lambda row: row.table),
        Column("TO DELETE" if dry_run else "DELETED", lambda row: row.rows),
        Column("RETENTION", lambda row: format_duration(row.retention_ms)),
    ]
    if any(row.project_id for row in pruned):
        columns.append(Column("PROJECT", lambda row: row.project_id or "", drop=1))
    app.show_list(pruned, columns, empty="")


@command.command()
@click.argument("level", required=False, type=click.Choice(["normal", "full"]))
@pass_app
def durability(app: App, level: str | None) -> None:
    """Show or set the durability of committed changes.

    With `normal` they survive the crash of any process, with `full` also a power failure.
    """
    current = app.store.db.durability(level)
    app.report(f"Durability is {current}.", {"durability": current})
