"""Races go on: what ended is checked, judges are asked, automatic races go on by themselves."""

from corral.daemon.loop import Plain
from corral.library import Corral

LONGEST_SLEEP = 30.0


class Marshal(Plain):
    name = "marshal"
    is_led = False  # a race goes on where its worktrees are
    rest = 0.5

    def round(self, store: Corral) -> int:
        return store.races.advance_open()

    def pause(self, store: Corral) -> float:
        """The end of a run is a commit; one whose keeper died without a word waits for longer."""
        return LONGEST_SLEEP
