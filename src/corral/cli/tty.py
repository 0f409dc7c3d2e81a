"""The terminal of the caller: whether there is one, its size, and confirmation of questions."""

import os

import click


def is_terminal() -> bool:
    """Return whether standard input and standard output are terminals."""
    return os.isatty(0) and os.isatty(1)


def terminal_size() -> tuple[int, int]:
    """Return the rows and columns of the terminal, or 24 and 80 without one."""
    try:
        columns, rows = os.get_terminal_size(1)
    except OSError:
        return 24, 80
    return (rows, columns) if rows and columns else (24, 80)


def confirm(question: str) -> None:
    """Ask for confirmation; abort unless the answer is yes.

    Raises Refused when standard input is not a terminal.
    """
    if not os.isatty(0):
        from corral.kernel.errors import Refused

        raise Refused(
            f"{question} Confirm with --yes: standard input is not a terminal.",
            reason="not_confirmed",
        )
    click.confirm(question, abort=True, err=True)
