"""Results of run workflows."""

from typing import Literal

import msgspec


class SentInput(msgspec.Struct, frozen=True):
    """How a text reached a run."""

    run_id: str
    how: Literal["typed", "answered", "mailed"]
    letter_id: str | None
    option: str | None = None
    """The selected option of the dialog."""
