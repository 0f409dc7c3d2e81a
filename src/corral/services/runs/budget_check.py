"""Check that the usage of a run can be measured, so that its budget can be enforced."""

from corral.adapters.transcripts.reader import READABLE_PROVIDERS
from corral.domain.runs.model import RunMode
from corral.kernel.errors import Refused

# Reports usage in its stream, but not at a terminal.
_STREAM_ONLY = "scripted"


def require_measurable_usage(
    program: str, provider: str, mode: RunMode, budget_micros: int | None
) -> None:
    """Raise Refused for a budget that cannot be enforced.

    A program that speaks the Agent Client Protocol is accepted: its supervisor stops it when it
    works without reporting usage.
    """
    if budget_micros is None or provider in READABLE_PROVIDERS or mode is RunMode.ACP:
        return
    if provider == _STREAM_ONLY and mode is not RunMode.PTY:
        return
    where = " at a terminal" if mode is RunMode.PTY else ""
    raise Refused(
        f"A budget for {program}{where} cannot be enforced: Corral cannot measure its usage. "
        f"Omit the budget, or use one of {', '.join(sorted(READABLE_PROVIDERS))}.",
        provider=provider,
        mode=str(mode),
        budget_micros=budget_micros,
    )
