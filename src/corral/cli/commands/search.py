import click

from corral.cli.app import App, Verb, paging, pass_app
from corral.cli.render import ago

COLUMNS = [
    ("KIND", lambda hit: hit.kind),
    ("IN", lambda hit: hit.subject),
    ("PLACE", lambda hit: hit.place),
    ("AT", lambda hit: ago(hit.at)),
    ("CONTENT", lambda hit: hit.snippet),
]


@click.command("search", cls=Verb)
@click.argument("text", nargs=-1, required=True)
@click.option("--kind", type=click.Choice(["turn", "output", "note"]), help="Only in these.")
@click.option("--project", metavar="ID|DIR", help="Only in this project.")
@paging
@pass_app
def command(
    app: App,
    text: tuple[str, ...],
    kind: str | None,
    project: str | None,
    after: str | None,
    limit: int,
) -> None:
    """Find what was said, printed or noted, by its words; newest first."""
    page = app.store.search.find(
        " ".join(text), kind=kind, project=app.project_id(project), after=after, limit=limit
    )
    app.show_page(page, COLUMNS, empty="Nothing holds all of these words.")
    behind = app.store.search.behind()
    if behind:
        click.echo(f"About {behind:,} turns cannot be found yet; search again.", err=True)
