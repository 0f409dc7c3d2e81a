import click

from corral.interfaces.cli import render
from corral.interfaces.cli.app import App, Noun, paging, pass_app


@click.group("import", cls=Noun, help="Bring in what other programs recorded.")
def command() -> None:
    pass


def _bring(app: App, source: str, folder: str | None) -> None:
    with render.progress(f"Reading the transcripts of {source}", quiet=app.json) as tell:
        brought = app.store.imports.bring(source, folder, on_file=tell)
    own = f" {brought.own} were run by Corral itself and are known." if brought.own else ""
    told = (
        f"{brought.turns:,} turns and {brought.charges:,} charges from {brought.sessions:,} of "
        f"{brought.files:,} transcripts.{own}"
    )
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


@command.command("list")
@paging
@pass_app
def list_imports(app: App, after: str | None, limit: int) -> None:
    """The files that were brought in."""
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
        empty="Nothing was brought in yet; try `corral import claude`.",
    )
