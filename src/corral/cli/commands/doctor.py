import click

from corral.cli.app import App, Verb, pass_app
from corral.cli.commands.db import FINDINGS


@click.command("doctor", cls=Verb)
@click.option("--fix", is_flag=True, help="Repair what can be repaired safely.")
@pass_app
def command(app: App, fix: bool) -> int:
    """Look at everything that Corral needs, and say what is wrong and what to do."""
    from corral.services.store.health import examine

    findings = examine(app.url, fix=fix)
    app.show_all(findings, FINDINGS, empty="")
    return 1 if any(finding.state == "broken" for finding in findings) else 0
