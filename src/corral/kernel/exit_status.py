"""How a process ended."""

from collections.abc import Set as AbstractSet
from typing import NamedTuple


class End(NamedTuple):
    """An exit code or a signal; neither: it is not known, and nobody makes one up."""

    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    well: bool = False
    """Whether it had done its work, whatever its process returned when it was let go."""
    sent: bool = False
    """Whether the signal was passed on from a person, as by Ctrl-C."""
    cpu_ms: int | None = None
    """Processor time of the process and of all below it that ended before."""
    peak_bytes: int | None = None
    """Most memory that one of these held."""
    survivors: tuple[int, ...] = ()
    """Processes of the run that could not be ended."""
    unsure: bool = False
    """Whether processes of the run may still exist that cannot be found."""

    @property
    def known(self) -> bool:
        return self.exit_code is not None or self.signal is not None

    def is_of(self, signals: AbstractSet[int]) -> bool:
        """Whether one of these signals ended it; many programs catch one and say so by 128 + n."""
        return self.signal in signals or (self.exit_code or 0) - 128 in signals
