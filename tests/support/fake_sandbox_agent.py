"""A sandboxed agent for tests: it uses the two bridge files like a real one, without a sandbox."""

import json
from typing import Any

from corral.adapters.sandbox_bridge import agent_client
from corral.adapters.sandbox_bridge.files import SessionFiles, acknowledge
from corral.adapters.sandbox_bridge.schema import SessionFolder
from corral.api import Corral
from corral.domain.runs.model import Run
from corral.services.chat.session_folder import get_session_folder
from tests.support.fake_channels import Chat, Runner


def enable_sandbox(store: Corral, agent: str = "ada") -> None:
    """Mark the agent as sandboxed; in tests, only the bridge files are used."""
    store.settings.set("chat.sandbox", "none", scope=f"agent:{agent}")


class FakeSandboxAgent:
    """The agent inside the sandbox of one run."""

    def __init__(self, store: Corral, run: Run) -> None:
        self._store = store
        self.run = run
        self.session = str(run.session_id)
        self.folder: SessionFolder = get_session_folder(self.session)
        self.files = SessionFiles(self.folder.top)

    def pending(self) -> list[dict[str, Any]]:
        return [row for row in self.files.pending() if "text" in row["content"]]

    def prompt(self) -> str:
        texts = (row["content"]["text"] for row in self.pending())
        return "\n\n".join(text for text in texts if text)

    def say(self, text: str, **more: Any) -> str:
        """Send one message during the turn and return its id."""
        address = more.pop("address", (None, None, None))
        kind = more.pop("kind", "chat")
        answers = more.pop("in_reply_to", None)
        with self.files.writing() as connection:
            id, _ = self.files.put(
                connection, kind, {"text": text} | more, address=address, in_reply_to=answers
            )
        return id

    def answer(self, text: str | None) -> None:
        """End the turn: the answer and the acknowledgements are one transaction."""
        rows = self.pending()
        with self.files.writing() as connection:
            if text is not None:
                agent_client._put_answer(self.files, connection, rows, text)
            acknowledge(connection, [row["id"] for row in rows], "completed")

    def write(self, statement: str, *values: Any) -> None:
        """Write arbitrary content into the agent's own file."""
        with self.files.writing() as connection:
            connection.execute(statement, values)

    def forge(self, id: str, seq: Any, content: Any = None, **more: Any) -> None:
        result = content if isinstance(content, str) else json.dumps(content or {"text": "forged"})
        self.write(
            "INSERT INTO messages_out (id, seq, timestamp, kind, platform_id, channel_type, "
            "content) VALUES (?, ?, 't', ?, ?, ?, ?)",
            *(id, seq, more.get("kind", "chat"), more.get("platform_id")),
            *(more.get("channel_type"), result),
        )

    def outcomes(self) -> dict[str, str]:
        """Return the outcomes that the host reported for the messages."""
        with self.files.reading() as connection:
            return dict(connection.execute("SELECT message_out_id, status FROM delivered"))


class SandboxConversation:
    """A sandboxed agent, a chat wired to it, and a runner for its turns."""

    def __init__(self, store: Corral, **wiring: Any) -> None:
        self.store = store
        store.agents.create("ada", provider="scripted")
        enable_sandbox(store)
        self.chat = Chat(store)
        store.wirings.add("ada", channel=self.chat.channel.name, **wiring)
        self.runner = Runner(store)

    def begin(self) -> FakeSandboxAgent:
        """Start the next pending turn."""
        self.store.internal.chat.start_turns()
        run = self.runner.begin()
        self.store.internal.chat.prepare_sandbox(str(run.session_id))
        return FakeSandboxAgent(self.store, run)

    def end(self, agent: FakeSandboxAgent, how: str = "end") -> None:
        """End the run and its turn, and deliver its messages."""
        getattr(self.runner, how)(agent.run)
        self.store.internal.chat.finish_turns()
        self.chat.deliver()

    def shown(self) -> list[str]:
        return self.chat.platform.words()
