"""`corral import`: import transcripts and data from other agent tools."""

from typing import Any

import click

from corral.cli import render
from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app


@click.group(
    "import",
    cls=CommandGroup,
    help="""Import transcripts and data from other agent tools.

    Transcripts: claude, codex. Databases: agent-yes, agents, flightdeck, multishot, nanoclaw. An
    import never changes its source, and repeating it imports only what is new.
    """,
)
def command() -> None:
    pass


# -- transcripts -------------------------------------------------------------------------------


def _import_transcripts(app: App, source: str, folder: str | None) -> None:
    with render.progress(f"Reading the transcripts of {source}", quiet=app.json) as update:
        result = app.store.imports.import_transcripts(source, folder, on_file=update)
    if not result.files:
        app.report("No transcripts found in that directory.", result)
        return
    turns = render.format_count(result.turns, "turns")
    charges = render.format_count(result.charges, "charges")
    files = render.format_count(result.files, "transcripts")
    text = f"Imported {turns} and {charges} from {result.sessions:,} of {files}."
    if result.own:
        text += f" Skipped {result.own} sessions that Corral ran itself."
    if result.left_out:
        counts = ", ".join(f"{rows:,} {kind}" for kind, rows in sorted(result.left_out.items()))
        text += f" Skipped lines and blocks: {counts}."
    if result.unreadable:
        names = ", ".join(result.unreadable[:3])
        text += f" {len(result.unreadable):,} files are unreadable or not transcripts: {names}."
    app.report(text, result)


@command.command("claude", examples=["corral import claude"])
@click.argument("folder", metavar="[DIR]", required=False)
@pass_app
def claude(app: App, folder: str | None) -> None:
    """Import sessions of Claude Code from DIR (default: ~/.claude/projects)."""
    _import_transcripts(app, "claude", folder)


@command.command("codex", examples=["corral import codex"])
@click.argument("folder", metavar="[DIR]", required=False)
@pass_app
def codex(app: App, folder: str | None) -> None:
    """Import sessions of Codex from DIR (default: ~/.codex/sessions)."""
    _import_transcripts(app, "codex", folder)


# -- databases ---------------------------------------------------------------------------------


def _import_database(app: App, tool: str, path: str, name: str | None) -> None:
    with render.progress(f"Reading the database of {tool}", quiet=app.json) as update:
        result = app.store.imports.import_database(tool, path, source=name, on_rows=update)
    if app.json:
        app.report("", result)
        return
    if not result.rows:
        app.report(f"{path} contains no rows.", result)
        return
    _show_tables(app, result)
    for sentence in _summary(result):
        render.write_line(sentence)


def _show_tables(app: App, result: Any) -> None:
    app.show_list(
        result.tables,
        [
            Column("TABLE", lambda row: row.table),
            Column("ROWS", lambda row: row.rows),
            Column("NEW", lambda row: row.new),
            Column("EXISTING", lambda row: row.known),
            Column("CHANGED", lambda row: row.changed),
            Column("KEPT RAW", lambda row: row.kept),
            Column(
                "BECAME",
                lambda row: ", ".join(
                    render.format_count(count, noun) for noun, count in row.created.items()
                ),
            ),
        ],
        empty="",
    )


def _summary(result: Any) -> list[str]:
    """Return the sentences about new rows, problems, omissions, retention and redaction."""
    if result.new or result.changed or result.restored:
        lines = [f"{result.new:,} of {result.rows:,} rows are new; {result.known:,} were known."]
        if result.restored:
            lines.append(f"Restored {result.restored:,} of those, which had been deleted here.")
    else:
        lines = [f"Nothing new: all {result.rows:,} rows were known."]
    for problem in result.problems:
        lines.append(
            f"{problem.table}: {problem.what} ({problem.rows:,}, as in {problem.example[:60]})"
        )
    for title, names in (
        ("Missing in this database", result.missing),
        ("Unknown, kept raw", result.unknown),
        ("Skipped, because the tool derives it from its other tables", result.left_out),
    ):
        if names:
            lines.append(f"{title}: {', '.join(names)}.")
    lines += [f"Not imported: {reason}" for reason in result.skipped]
    lines += _retention(result)
    if result.secrets:
        lines.append(f"Redacted text that looks like a secret in {result.secrets:,} rows.")
    return lines


def _retention(result: Any) -> list[str]:
    """Report the effect of retention on imported rows, and the setting that changes it."""
    if not result.retention:
        return []
    counts = ", ".join(render.format_count(rule.rows, rule.table) for rule in result.retention)
    if result.exempt:
        return [
            f"Imported data is exempt from retention, which would otherwise delete {counts}. "
            "Apply it with `corral setting set imports.apply_retention true`."
        ]
    return [
        f"Retention applies to imported data and will delete {counts}. "
        "Exempt it with `corral setting set imports.apply_retention false`."
    ]


def _add_importer(tool: str, content: str) -> None:
    help = f"Import {content}.\n\nPATH is the database file, or the directory that contains it."

    @command.command(tool, help=help, examples=[f"corral import {tool} PATH"])
    @click.argument("path")
    @click.option(
        "--name", help="Name that identifies the source in later imports (default: its path)."
    )
    @pass_app
    def import_tool(app: App, path: str, name: str | None) -> None:
        _import_database(app, tool, path, name)


_add_importer("agent-yes", "projects and runs of agent-yes")
_add_importer("agents", "agents, sessions and runs of the Prisma schema `agents`")
_add_importer("flightdeck", "crews of flightdeck: tasks, chats and memory")
_add_importer("multishot", "races of multishot")
_add_importer("nanoclaw", "agents and chats of nanoclaw, with the files of its sessions")


@command.command("rows")
@click.option("--id", help="Only list the rows of the record with this id.")
@click.option("--kept", is_flag=True, help="Only list rows that were kept raw.")
@paging_options
@pass_app
def rows(app: App, id: str | None, kept: bool, after: str | None, limit: int) -> None:
    """List the imported rows of databases, and the record of each."""
    app.show_page(
        app.store.imports.origins(id=id, kept=kept, after=after, limit=limit),
        [
            Column("TOOL", lambda row: row.tool),
            Column("TABLE", lambda row: row.part),
            Column("ROW", lambda row: row.row_id),
            Column("RECORD", lambda row: row.id or row.record_table or "-"),
            Column("ERROR", lambda row: "; ".join(row.problems or []), shrink="truncate"),
            Column("SOURCE", lambda row: row.source),
        ],
        empty="No imported databases.",
    )


@command.command("list")
@paging_options
@pass_app
def list_imports(app: App, after: str | None, limit: int) -> None:
    """List the imported transcripts. List imported database rows with `corral import rows`."""
    app.show_page(
        app.store.imports.list(after=after, limit=limit),
        [
            Column("SOURCE", lambda row: row.source),
            Column("SESSION", lambda row: row.session_id),
            Column("TURNS", lambda row: row.turns),
            Column("CHARGES", lambda row: row.charges),
            Column("READ", lambda row: render.format_age(row.updated_at)),
            Column("PATH", lambda row: row.path, shrink="truncate"),
        ],
        empty="No imported transcripts. Import some with `corral import claude`; list imported "
        "database rows with `corral import rows`.",
    )
