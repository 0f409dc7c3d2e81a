import click

from corral.cli.app import App, Verb, pass_app


@click.command("hook", cls=Verb)
@click.argument("provider")
@click.argument("event")
@pass_app
def command(app: App, provider: str, event: str) -> int:
    """Called by the hooks that `corral lock install` sets up.

    PROVIDER is claude, codex, copilot, gemini or qwen, EVENT pre-tool-use or post-tool-use, with
    the CLI's own words on standard input; or `git pre-commit`. A change of what another owner has
    locked is refused in the way that the caller understands.
    """
    from corral import hooks

    return hooks.run([provider, event], app.url)
