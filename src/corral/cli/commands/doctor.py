"""`corral doctor`: check the installation and repair problems."""

import click

from corral.cli.click_classes import Command
from corral.cli.commands.db import FINDINGS
from corral.cli.context import App, pass_app


@click.command("doctor", cls=Command)
@click.option("--fix", is_flag=True, help="Repair what can be repaired safely.")
@pass_app
def command(app: App, fix: bool) -> int:
    """Check everything that Corral needs, and explain how to fix problems.

    Exits with 1 if a check fails.
    """
    from corral.api.doctor import examine

    findings = examine(app.url, fix=fix)
    app.show_list(findings, FINDINGS, empty="")
    return 1 if any(finding.state == "broken" for finding in findings) else 0
