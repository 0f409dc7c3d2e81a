"""Ready tasks of projects that ask for it are started, each in a worktree of its own."""

from corral.api import Corral
from corral.daemon.loop import Plain

LONGEST_SLEEP = 30.0


class Foreman(Plain):
    name = "foreman"
    is_led = False  # a worktree is made where the project is
    rest = 0.5

    def round(self, store: Corral) -> int:
        return len(store.tasks.start_ready())

    def pause(self, store: Corral) -> float:
        """Whatever makes a task ready, or makes room, is a commit."""
        return LONGEST_SLEEP
