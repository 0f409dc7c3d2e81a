"""How worktrees that were left are shown, and what is said before any of them is removed."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from corral.cli.app import App, Columns
from corral.cli.render import write_line

if TYPE_CHECKING:
    from corral.services.worktree_cleanup import Leftover


def show_leftovers(
    app: App,
    found: "Sequence[Leftover]",
    whose: tuple[str, Callable[[Any], object]],
    *,
    confirmed: bool,
) -> None:
    """List them, with whose each is; as long as nothing was done, say how to do it."""
    columns: Columns = [
        whose,
        ("ACTION", lambda left: left.action),
        ("SIZE", lambda left: size(left.bytes)),
        ("WORKTREE", lambda left: left.worktree),
        ("REASON", lambda left: left.reason),
    ]
    app.show_all(found, columns, empty="There is nothing to clear away.")
    free = [left.bytes for left in found if left.action == "remove"]
    if free and not app.json and not confirmed:
        write_line(f"Nothing was done yet; --yes removes these ({size(sum(free))}).")


def size(count: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.0f} {unit}"
        count //= 1_000
    return f"{count:,} TB"
