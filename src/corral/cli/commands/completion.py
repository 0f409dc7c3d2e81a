"""`corral completion`: print the shell completion script."""

import click

from corral.cli.click_classes import Command


@click.command(
    "completion",
    cls=Command,
    examples=[
        'eval "$(corral completion bash)"',
        "corral completion fish > ~/.config/fish/completions/corral.fish",
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for bash, zsh or fish."""
    from click.shell_completion import get_completion_class

    from corral.cli.main import root

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(root, {}, "corral", "_CORRAL_COMPLETE").source())
