"""The check that a run can have a budget: Corral must be able to measure its usage."""

from corral.adapters.transcripts.transcript import READABLE
from corral.domain.runs.model import Mode
from corral.kernel.errors import Refused

# Reports usage in its stream, but not at a terminal.
_STREAM_ONLY = "scripted"


def require_measured(program: str, provider: str, mode: Mode, budget_micros: int | None) -> None:
    """Refuse a budget that could not be enforced.

    A program that speaks the Agent Client Protocol is accepted: its supervisor stops it when it
    works without reporting usage.
    """
    if budget_micros is None or provider in READABLE or mode is Mode.ACP:
        return
    if provider == _STREAM_ONLY and mode is not Mode.PTY:
        return
    where = " at a terminal" if mode is Mode.PTY else ""
    raise Refused(
        f"A budget for {program}{where} cannot be enforced: Corral cannot measure its usage. "
        f"Omit the budget, or use one of {', '.join(sorted(READABLE))}.",
        provider=provider,
        mode=str(mode),
        budget_micros=budget_micros,
    )
