"""Conversations to append messages to: Corral, by hand, and common frameworks."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any, Protocol

import apsw

from bench.opponents import now_ms, open_store
from corral.api import Corral

LAST = 50
TEXT = "The tests pass now; the cause was a missing index on the table of turns. " * 3


class Conversation(Protocol):
    def append(self) -> None:
        """Append one message durably."""
        ...


class Framework(Conversation, Protocol):
    def load(self) -> None:
        """Load what the framework continues with: 50 messages, or the latest checkpoint."""
        ...


class CorralConversation:
    """Corral through its public API."""

    def __init__(self, store: Corral) -> None:
        self._append = store.sessions.append
        self.id = store.sessions.open(title="bench").id

    def append(self) -> None:
        self._append(self.id, "user", TEXT)


class SessionConversation:
    """A session of openai-agents, in one event loop."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._loop = asyncio.new_event_loop()
        self._item = {"role": "user", "content": TEXT}

    def append(self) -> None:
        self._loop.run_until_complete(self._session.add_items([self._item]))

    def load(self) -> None:
        self._loop.run_until_complete(self._session.get_items(LAST))


class CorralSessionConversation(SessionConversation):
    """openai-agents with Corral's session."""

    def __init__(self, store: Corral) -> None:
        from corral.integrations.openai_agents import CorralSession

        super().__init__(CorralSession("bench", store))


COUNT = """
    UPDATE sessions SET turns = turns + 1, updated_at = :now
    WHERE id = :id AND state = 'open' RETURNING turns, agent_id
"""
ADD = """
    INSERT INTO turns (session_id, number, role, content, is_error, agent_id, at)
    VALUES (:id, :number, 'user', :content, 0, :agent, :now)
    RETURNING seq, session_id, number, role, content, tool_call_id, tool_name, arguments, result,
        is_error, input_tokens, output_tokens, agent_id, run_id, key, meta, at
"""


class ConversationByHand:
    """The same two prepared statements on the same tables."""

    def __init__(self, path: Path) -> None:
        with open_store(f"sqlite:///{path}") as store:
            self._id = store.sessions.open().id
        connection = apsw.Connection(str(path), statementcachesize=512)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        for pragma in ("synchronous = NORMAL", "temp_store = MEMORY", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")
        self._run: Any = connection.execute

    def append(self) -> None:
        run, now = self._run, now_ms()
        run("BEGIN IMMEDIATE")
        ((number, agent),) = run(COUNT, {"now": now, "id": self._id}).fetchall()
        turn = {"id": self._id, "number": number, "content": TEXT, "agent": agent, "now": now}
        run(ADD, turn).fetchall()
        run("COMMIT")


class OpenAiAgents(SessionConversation):
    """`SQLiteSession` of openai-agents."""

    def __init__(self, path: Path, *, normal: bool) -> None:
        from agents import SQLiteSession

        super().__init__(SQLiteSession("bench", path))
        if normal:
            self._set_normal()

    def _set_normal(self) -> None:
        """Configure each connection that it opens before its first use."""
        connect = self._session._get_connection
        result: set[int] = set()

        def normal() -> Any:
            connection = connect()
            if id(connection) not in result:
                result.add(id(connection))
                connection.execute("PRAGMA synchronous = NORMAL")
            return connection

        self._session._get_connection = normal


class OpenAiAgentsOnPostgres(SessionConversation):
    """`SQLAlchemySession` of openai-agents, on psycopg."""

    def __init__(self, url: str) -> None:
        from agents.extensions.memory import SQLAlchemySession

        driver = url.replace("postgresql://", "postgresql+psycopg://", 1)
        super().__init__(SQLAlchemySession.from_url("bench", url=driver, create_tables=True))


class CheckpointConversation:
    """A conversation of 20 messages in a langgraph checkpointer, then the next one.

    The checkpointer gets the whole state at every step.
    """

    LENGTH = 20

    def __init__(self, saver: Any) -> None:
        from langgraph.checkpoint.base import empty_checkpoint

        self._saver = saver
        self._empty = empty_checkpoint
        self._step = 0
        self._messages: list[dict[str, str]] = []

    def append(self) -> None:
        if len(self._messages) == self.LENGTH:
            self._messages = []
        self._step += 1
        self._messages.append({"role": "user", "content": TEXT})
        checkpoint = self._empty()
        checkpoint["channel_values"] = {"messages": self._messages}
        checkpoint["channel_versions"] = {"messages": self._step}
        values = {"source": "loop", "step": self._step}
        # Only what changed: a saver that stores channels separately writes only those.
        self._saver.put(self._thread(), checkpoint, values, {"messages": self._step})

    def load(self) -> None:
        assert self._saver.get_tuple(self._thread())

    def _thread(self) -> dict[str, Any]:
        thread = str((self._step - 1) // self.LENGTH)
        return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


class LangGraph(CheckpointConversation):
    """`SqliteSaver` of langgraph."""

    def __init__(self, path: Path, *, normal: bool) -> None:
        from langgraph.checkpoint.sqlite import SqliteSaver

        connection = sqlite3.connect(path, check_same_thread=False)
        saver = SqliteSaver(connection)
        saver.setup()
        if normal:
            connection.execute("PRAGMA synchronous = NORMAL")
        super().__init__(saver)


class LangGraphOnPostgres(CheckpointConversation):
    """`PostgresSaver` of langgraph, on one connection with prepared statements."""

    def __init__(self, url: str) -> None:
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.rows import dict_row

        connection = psycopg.connect(
            url, autocommit=True, prepare_threshold=0, row_factory=dict_row
        )
        saver = PostgresSaver(connection)
        saver.setup()
        super().__init__(saver)


class CorralCheckpoints(CheckpointConversation):
    """langgraph with Corral's saver."""

    def __init__(self, store: Corral) -> None:
        from corral.integrations.langgraph import CorralSaver

        super().__init__(CorralSaver(store))
