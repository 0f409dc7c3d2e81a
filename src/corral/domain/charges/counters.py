"""From totals to differences: what a cumulative report adds to the one before.

A counter that went down began anew (a new process, a cleared thread): then the figures themselves
are what is new.
"""

import msgspec


class Figures(msgspec.Struct, frozen=True):
    """What a report tells, in the order of its columns."""

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
    def empty(self) -> bool:
        """Whether nothing was used: no token, and no money that is known of."""
        return not any(self.tokens) and not self.cost_micros


def difference(last: Figures | None, now: Figures) -> Figures:
    """What is new since the last report of all figures.

    A cost that was not told the last time leaves the new one unknown: how much of it belongs to
    the reports before cannot be said, and those may have been priced otherwise.
    """
    if last is None or _began_anew(last, now):
        return now
    return Figures(
        now.input - last.input,
        now.output - last.output,
        now.cache_read - last.cache_read,
        now.cache_write - last.cache_write,
        now.reasoning - last.reasoning,
        _added(last.cost_micros, now.cost_micros),
    )


def difference_of_cost(last: Figures | None, now: Figures) -> Figures:
    """The same where only the money is cumulative, and the tokens are the report's own."""
    if last is None or _fell(last.cost_micros, now.cost_micros):
        return now
    return msgspec.structs.replace(now, cost_micros=_added(last.cost_micros, now.cost_micros))


def _began_anew(last: Figures, now: Figures) -> bool:
    return _fell(last.cost_micros, now.cost_micros) or any(
        new < old for old, new in zip(last.tokens, now.tokens, strict=True)
    )


def _fell(old: int | None, new: int | None) -> bool:
    return old is not None and new is not None and new < old


def _added(old: int | None, new: int | None) -> int | None:
    return None if old is None or new is None else new - old
