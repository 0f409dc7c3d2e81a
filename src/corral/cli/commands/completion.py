import click

from corral.cli.app import Verb


@click.command("completion", cls=Verb)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script; in bash: eval "$(corral completion bash)"."""
    from click.shell_completion import get_completion_class

    from corral.cli.main import root

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root, {}, "corral", "_CORRAL_COMPLETE").source())
