"""`corral search`: search sessions, output and notes."""

import click

from corral.cli.click_classes import Command, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.render import format_age

COLUMNS = [
    Column("KIND", lambda hit: hit.kind),
    Column("IN", lambda hit: hit.subject),
    Column("LOCATION", lambda hit: hit.location),
    Column("AT", lambda hit: format_age(hit.at)),
    Column("CONTENT", lambda hit: hit.snippet, shrink="truncate"),
]


@click.command(
    "search",
    cls=Command,
    examples=["corral search flaky test", "corral search --kind note redis"],
)
@click.argument("text", nargs=-1, required=True)
@click.option(
    "--kind",
    type=click.Choice(["turn", "output", "note"]),
    help="Only search turns, output or notes (default: all).",
)
@click.option("--project", metavar="ID|DIR", help="Only search this project.")
@paging_options
@pass_app
def command(
    app: App,
    text: tuple[str, ...],
    kind: str | None,
    project: str | None,
    after: str | None,
    limit: int,
) -> None:
    """Search sessions, output and notes for all words of TEXT, newest first."""
    page = app.store.search.find(
        " ".join(text), kind=kind, project=app.project_id(project), after=after, limit=limit
    )
    app.show_page(page, COLUMNS, empty="No results.")
    unindexed = app.store.search.count_unindexed()
    if unindexed:
        click.echo(f"About {unindexed:,} turns are not indexed yet. Search again later.", err=True)
