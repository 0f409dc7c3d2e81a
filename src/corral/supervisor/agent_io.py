"""How the supervisor understands an agent and records what it reports.

    AgentIO     a plain command that reports nothing
    StreamIO    structured lines in its output (`stream_io.py`)
    SandboxIO   a stream, and the session files of a sandboxed chat agent (`sandbox_io.py`)
    ScreenIO    a terminal interface drawn for a person (`screen_io.py`)
    AcpIO       the Agent Client Protocol over its input and output (`acp_io.py`)

`Recorder` (`recorder.py`) writes the reported facts to the store.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from corral.adapters.providers.facts import LimitFact, ResultFact, UsageFact
from corral.domain.runs.model import Attention, Dialog

if TYPE_CHECKING:
    from corral.supervisor.recorder import Recorder
    from corral.supervisor.transcript import TranscriptFollower

MIN_PAUSE = 0.05  # seconds between two polls
MAX_PAUSE = 1.0

Log = Callable[[str, str, dict[str, Any] | None], None]
Reply = Callable[[dict[str, Any]], None]


class AgentStatus:
    """What is known of the agent of one attempt.

    The agent's interface, its recorders and its budget watch write it; the supervisor reads it.
    """

    def __init__(self) -> None:
        self.attention: Attention | None = None
        self.dialog: Dialog | None = None
        """The open question, while `attention` is NEEDS_INPUT and the question is known."""
        self.quota_limit: LimitFact | None = None
        self.result: ResultFact | None = None
        self.over_budget: str | None = None
        """Why the run must stop; None: within budget."""
        self.denied: dict[str, str] = {}
        """The denied tools, by call."""
        self.is_working = False
        """Whether its screen shows that it is working, even if nothing changes."""
        self.is_starting = False
        """Whether its interface has not appeared yet; it does not count as idle then."""
        self.is_done = False
        """Whether it has finished its prompt and only waits for its input to be closed."""


class AgentIO:
    """The agent of one attempt. This base class understands nothing of its output."""

    pause: float | None = None
    """Seconds until `poll` is to be called again; None: only after new output."""

    def __init__(self) -> None:
        self.status = AgentStatus()
        self.transcript: TranscriptFollower | None = None
        """The reader of the transcript that the CLI itself writes."""
        self.recorder: Recorder | None = None
        """The recorder of its stream, if it has one."""

    def set_transcript(self, transcript: "TranscriptFollower") -> None:
        """Follow a transcript from now on; the recorders pass sessions and usage to it."""
        self.transcript = transcript.recorder.transcript = transcript
        if self.recorder is not None:
            self.recorder.transcript = transcript

    def feed(self, data: bytes) -> None:
        """Process output that the supervisor has copied."""

    def resize(self, rows: int, columns: int) -> None:
        """Process a new size of the terminal."""

    def poll(self) -> bool:
        """Process new output; return whether there was any."""
        return False

    def follow(self, agent_pid: int | None) -> bool:
        """Record the new items of the CLI's transcript; return whether there were any."""
        if self.transcript is None:
            return False
        has_items = self.transcript.poll(agent_pid)
        recorder = self.recorder or self.transcript.recorder
        if self.status.is_working or (self.recorder is None and not self.transcript.is_screened):
            recorder.budget.notice_activity()
        if self.recorder is None:
            recorder.check_budget(self.transcript.pending)
        return has_items

    def pending_in_transcript(self) -> list[UsageFact]:
        """Usage in the transcript that is not charged yet."""
        return self.transcript.pending if self.transcript is not None else []

    def close_transcript(self) -> None:
        """Close the transcript after the agent has ended and its stream was read to the end."""
        if self.transcript is not None:
            self.transcript.close()

    def send(self, text: str, *, enter: bool, dialog: str | None, reply: Reply) -> bool:
        """Pass a text to the agent, and call `reply` with the outcome, now or later.

        `dialog` is the id of the dialog that the text is meant for. Returns False if this agent has
        no interface of its own; the caller then types the text into its terminal.
        """
        return False

    def quit(self, command: str, failed: Callable[[], None]) -> bool:
        """Ask an idle agent to quit, with a command of its interface.

        `failed` is called when the interface does not accept the command. Returns False if the
        agent cannot be asked now.
        """
        return False

    def close(self) -> None:
        """Process the rest of the output, after the agent has ended."""
