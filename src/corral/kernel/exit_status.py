"""How a process ended."""

from collections.abc import Set as AbstractSet
from typing import NamedTuple


class ExitStatus(NamedTuple):
    """The exit code or signal of a process; both are None when the exit status is unknown."""

    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    finished_work: bool = False
    """Whether the process had completed its work, regardless of its exit code when it was ended."""
    signal_was_forwarded: bool = False
    """Whether a person caused the end with a signal such as Ctrl-C, or an idle agent was ended."""
    cpu_ms: int | None = None
    """CPU time of the process and of all its descendants that ended before it."""
    peak_bytes: int | None = None
    """Maximum resident memory of any single one of these processes."""
    survivors: tuple[int, ...] = ()
    """Process ids of the run that could not be killed."""
    may_have_survivors: bool = False
    """Whether processes of the run may still exist that cannot be found."""

    @property
    def is_known(self) -> bool:
        return self.exit_code is not None or self.signal is not None

    def was_ended_by(self, signals: AbstractSet[int]) -> bool:
        """Whether one of these signals ended the process.

        Many programs catch a signal and exit with 128 + its number; that counts too.
        """
        return self.signal in signals or (self.exit_code or 0) - 128 in signals
