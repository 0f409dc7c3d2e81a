"""The run that a process belongs to."""

from typing import NamedTuple


class RunIdentity(NamedTuple):
    """The run that a process belongs to; the process acts with this identity."""

    run: str | None
    """None: a check or a script that Corral itself runs, outside any run."""
    agent_id: str | None
    agent: str | None
    """The name of the run's agent; a run may have none."""
    session: str | None
    project_id: str | None

    @property
    def actor(self) -> str:
        """The actor in recorded events; never a person."""
        if self.agent is not None:
            return f"agent:{self.agent}"
        return f"run:{self.run}" if self.run is not None else "check"

    @property
    def owner(self) -> str:
        """The owner of the locks that the process takes."""
        if self.agent is None and self.session is not None:
            return f"session:{self.session}"
        return self.actor

    @property
    def mailbox(self) -> str:
        """The mailbox of the process."""
        if self.agent is None and self.session is None:
            return f"queue:{self.run or 'check'}"
        return self.owner
