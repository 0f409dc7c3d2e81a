from typing import Any

import click

from corral.cli import render
from corral.cli.app import App, Noun, paging, pass_app


@click.group("import", cls=Noun, help="Bring in what other programs recorded.")
def command() -> None:
    pass


def _bring(app: App, source: str, folder: str | None) -> None:
    with render.progress(f"Reading the transcripts of {source}", quiet=app.json) as tell:
        brought = app.store.imports.bring(source, folder, on_file=tell)
    own = f" {brought.own} were run by Corral itself and are known." if brought.own else ""
    told = (
        f"{render.count(brought.turns, 'turns')} and {render.count(brought.charges, 'charges')} "
        f"from {brought.sessions:,} of {render.count(brought.files, 'transcripts')}.{own}"
    )
    if brought.left_out:
        counts = ", ".join(f"{rows:,} {kind}" for kind, rows in sorted(brought.left_out.items()))
        told += f"\nSkipped lines and blocks: {counts}."
    if brought.unreadable:
        named = ", ".join(brought.unreadable[:3])
        told += f"\n{len(brought.unreadable):,} files are unreadable or not transcripts: {named}"
    app.say(told if brought.files else "There are no transcripts in that folder.", brought)


@command.command("claude")
@click.argument("folder", required=False)
@pass_app
def claude(app: App, folder: str | None) -> None:
    """Conversations of Claude Code, from ~/.claude/projects or FOLDER; again only what is new."""
    _bring(app, "claude", folder)


@command.command("codex")
@click.argument("folder", required=False)
@pass_app
def codex(app: App, folder: str | None) -> None:
    """Conversations of Codex, from ~/.codex/sessions or FOLDER; again only what is new."""
    _bring(app, "codex", folder)


def _take(app: App, tool: str, path: str, name: str | None) -> None:
    with render.progress(f"Reading the database of {tool}", quiet=app.json) as tell:
        taken = app.store.imports.take(tool, path, source=name, on_rows=tell)
    if app.json:
        app.say("", taken)
        return
    if not taken.rows:
        app.say(f"There is nothing in {path} yet.", taken)
        return
    _show_tables(app, taken)
    for told in _told(taken):
        render.write_line(told)


def _show_tables(app: App, taken: Any) -> None:
    app.show_all(
        taken.tables,
        [
            ("TABLE", lambda row: row.table),
            ("ROWS", lambda row: row.rows),
            ("NEW", lambda row: row.new),
            ("KNOWN", lambda row: row.known),
            ("CHANGED", lambda row: row.changed),
            ("KEPT AS IT WAS", lambda row: row.kept),
            (
                "BECAME",
                lambda row: ", ".join(render.count(n, what) for what, n in row.became.items()),
            ),
        ],
        empty="",
    )


def _told(taken: Any) -> list[str]:
    """What a person should know, in sentences."""
    if taken.new or taken.changed or taken.restored:
        lines = [f"{taken.new:,} of {taken.rows:,} rows are new; {taken.known:,} were known."]
        if taken.restored:
            lines.append(f"{taken.restored:,} of those had been deleted here and were restored.")
    else:
        lines = [f"Nothing is new: all {taken.rows:,} rows were known."]
    for each in taken.troubles:
        lines.append(f"{each.table}: {each.what} ({each.rows:,}, as in {each.example[:60]})")
    for words, names in (
        ("Not in this database", taken.missing),
        ("Not known here, kept as it was", taken.unknown),
        ("Left out, since the tool makes it from its other tables", taken.left_out),
    ):
        if names:
            lines.append(f"{words}: {', '.join(names)}.")
    lines += [f"Not imported: {each}" for each in taken.skipped]
    lines += _retention(taken)
    if taken.secrets:
        lines.append(f"Something that looks like a secret was blanked in {taken.secrets:,} rows.")
    return lines


def _retention(taken: Any) -> list[str]:
    """Report the effect of retention on imported rows, and the setting that changes it."""
    if not taken.retention:
        return []
    counts = ", ".join(render.count(each.rows, each.table) for each in taken.retention)
    if taken.exempt:
        return [
            f"Imported data is exempt from retention, which would otherwise delete {counts}. "
            "Apply it with `corral setting set imports.retention true`."
        ]
    return [
        f"Retention applies to imported data and will delete {counts}. "
        "Exempt it with `corral setting set imports.retention false`."
    ]


def _database(tool: str, what: str) -> None:
    help = f"{what} PATH is the database, or its folder; again only what is new."

    @command.command(tool, help=help)
    @click.argument("path")
    @click.option("--name", help="What the database is known by; else its path.")
    @pass_app
    def bring(app: App, path: str, name: str | None) -> None:
        _take(app, tool, path, name)


_database("agent-yes", "Projects and runs of agent-yes.")
_database("agents", "Agents, sessions and runs of the Prisma schema.")
_database("flightdeck", "Crews of flightdeck: tasks, chats, memory.")
_database("multishot", "Races of multishot.")
_database("nanoclaw", "Agents and chats of nanoclaw, with the files of its sessions.")


@command.command("rows")
@click.option("--id", help="Only what became the thing with this id.")
@click.option("--kept", is_flag=True, help="Only what became nothing and is kept as it was.")
@paging
@pass_app
def rows(app: App, id: str | None, kept: bool, after: str | None, limit: int) -> None:
    """Rows of other tools' databases: what each became, and what was kept beside."""
    app.show_page(
        app.store.imports.origins(id=id, kept=kept, after=after, limit=limit),
        [
            ("TOOL", lambda row: row.tool),
            ("TABLE", lambda row: row.part),
            ("ROW", lambda row: row.row_id),
            ("BECAME", lambda row: row.id or row.became or "-"),
            ("TROUBLE", lambda row: "; ".join(row.trouble or [])),
            ("SOURCE", lambda row: row.source),
        ],
        empty="Nothing was brought in from another tool's database yet.",
    )


@command.command("list")
@paging
@pass_app
def list_imports(app: App, after: str | None, limit: int) -> None:
    """The transcripts that were brought in; `rows` tells of databases."""
    app.show_page(
        app.store.imports.list(after=after, limit=limit),
        [
            ("SOURCE", lambda row: row.source),
            ("SESSION", lambda row: row.session_id),
            ("TURNS", lambda row: row.turns),
            ("CHARGES", lambda row: row.charges),
            ("READ", lambda row: render.ago(row.updated_at)),
            ("PATH", lambda row: row.path),
        ],
        empty="No transcript was brought in yet; try `corral import claude`. `corral import rows` "
        "shows what came from databases.",
    )
