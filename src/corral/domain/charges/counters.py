"""Deltas of cumulative usage reports.

A counter that decreased was reset (a new process, a cleared thread): the whole report is new then.
"""

import msgspec


class UsageFigures(msgspec.Struct, frozen=True):
    """The figures of a usage report, in the order of the columns."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    reasoning: int
    cost_micros: int | None

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.input, self.output, self.cache_read, self.cache_write, self.reasoning

    @property
    def is_empty(self) -> bool:
        """Whether it contains no tokens and no known cost."""
        return not any(self.tokens) and not self.cost_micros


def compute_delta(last: UsageFigures | None, now: UsageFigures) -> UsageFigures:
    """Return what was added since the last cumulative report.

    If the last report had no cost, the cost of the delta is unknown: an unknown part of the total
    belongs to the earlier reports, which may have been priced from a table.
    """
    if last is None or _is_reset(last, now):
        return now
    return UsageFigures(
        now.input - last.input,
        now.output - last.output,
        now.cache_read - last.cache_read,
        now.cache_write - last.cache_write,
        now.reasoning - last.reasoning,
        _subtract(last.cost_micros, now.cost_micros),
    )


def compute_cost_delta(last: UsageFigures | None, now: UsageFigures) -> UsageFigures:
    """Return the delta of a report whose cost is cumulative and whose tokens are not."""
    if last is None or _is_decreased(last.cost_micros, now.cost_micros):
        return now
    return msgspec.structs.replace(now, cost_micros=_subtract(last.cost_micros, now.cost_micros))


def _is_reset(last: UsageFigures, now: UsageFigures) -> bool:
    return _is_decreased(last.cost_micros, now.cost_micros) or any(
        new < old for old, new in zip(last.tokens, now.tokens, strict=True)
    )


def _is_decreased(old: int | None, new: int | None) -> bool:
    return old is not None and new is not None and new < old


def _subtract(old: int | None, new: int | None) -> int | None:
    return None if old is None or new is None else new - old
