"""Display of leftover worktrees, for `race clean` and `task clean`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral.cli.columns import Column, Columns
from corral.cli.context import App
from corral.cli.render import format_count, write_line

if TYPE_CHECKING:
    from corral.services.worktree_cleanup import Leftover


def show_leftovers(
    app: App,
    leftovers: "Sequence[Leftover]",
    owner: Column,
    *,
    confirmed: bool,
) -> None:
    """List leftover worktrees; `owner` is the first column. Without `confirmed`, add a hint."""
    columns: Columns = [
        owner,
        Column("ACTION", lambda leftover: leftover.action),
        Column("SIZE", lambda leftover: format_size(leftover.bytes)),
        Column("WORKTREE", lambda leftover: leftover.worktree),
        Column("REASON", lambda leftover: leftover.reason, shrink="truncate", drop=1),
    ]
    app.show_list(leftovers, columns, empty="No worktrees to remove.")
    sizes = [leftover.bytes for leftover in leftovers if leftover.action == "remove"]
    if app.json or not leftovers:
        return
    if confirmed:
        write_line(_summarize(leftovers))
    elif sizes:
        write_line(f"Dry run. Remove these worktrees ({format_size(sum(sizes))}) with --yes.")


def _summarize(leftovers: "Sequence[Leftover]") -> str:
    """Describe what was done: how many worktrees were removed, and how many were kept."""
    removed = [leftover.bytes for leftover in leftovers if leftover.action == "removed"]
    text = f"Removed {format_count(len(removed), 'worktrees')} ({format_size(sum(removed))})"
    kept = sum(leftover.action == "keep" for leftover in leftovers)
    return f"{text}, kept {kept:,}." if kept else f"{text}."


def format_size(count: int) -> str:
    """Format a number of bytes in its largest unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.0f} {unit}"
        count //= 1_000
    return f"{count:,} TB"
