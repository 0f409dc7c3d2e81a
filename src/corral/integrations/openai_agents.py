"""`CorralSession`: an openai-agents session that is stored in Corral.

    from corral.integrations.openai_agents import CorralSession

    session = CorralSession("conversation-7")  # in the user's own store
    result = await Runner.run(agent, "What is in the store?", session=session)

The conversation is a Corral session with turns: `corral session turns`, the search and the
dashboard show it. Items are returned exactly as they were added.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from corral.api import Corral
from corral.domain.sessions.model import NewTurn, Session, Turn, find_undone_number
from corral.integrations import resolve_store, run_shielded
from corral.kernel.pagination import iter_all
from corral.kernel.validation import MAX_DEPTH

try:
    from agents.memory import SessionSettings
    from agents.memory.session_settings import resolve_session_limit
except ImportError as error:
    raise ImportError(
        "CorralSession needs openai-agents. Run `pip install 'corral[openai-agents]'`."
    ) from error

if TYPE_CHECKING:
    from agents.items import TResponseInputItem

PROVIDER = "openai-agents"
PAGE = 1_000
_PLAIN = {"role", "content"}
_SPEAKERS = ("user", "assistant", "system")
_ROLES = {"developer": "system"}


class CorralSession:
    """Implements the Session protocol of openai-agents with Corral's sessions and turns."""

    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        store: Corral | str | Path | None = None,
        *,
        agent: str | None = None,
        project: str | None = None,
        title: str | None = None,
        session_settings: SessionSettings | None = None,
        token: str | None = None,
    ) -> None:
        """`session_id` is a name of the caller's choice, or the id (`ses_…`) of any session.

        The session is opened when it is first used, for the given agent and project of Corral.
        `store` is an open store, a URL (of a daemon, with `token`), or None for the user's own.
        """
        self.session_id = session_id
        self.session_settings = session_settings or SessionSettings()
        self._store, self._is_owner = resolve_store(store, token)
        self._options = {"agent": agent, "project": project, "title": title or session_id[:200]}
        self._id: str | None = None

    @property
    def corral_id(self) -> str:
        """The id of the session in Corral (`ses_…`)."""
        if self._id is None:
            self._id = self._open_session().id
        return self._id

    def close(self) -> None:
        """Close the store, unless it was passed in open."""
        if self._is_owner:
            self._store.close()

    async def get_items(self, limit: int | None = None) -> "list[TResponseInputItem]":
        """Return the latest `limit` items, oldest first; all items without a limit."""
        count = resolve_session_limit(limit, self.session_settings)
        return await asyncio.to_thread(self._items, count)

    async def add_items(self, items: "Sequence[TResponseInputItem]") -> None:
        """Append items in order. Up to 1,000 items are one transaction."""
        turns = [turn_from_item(cast(dict[str, Any], item)) for item in items]
        if turns:
            await run_shielded(self._add, turns)

    async def pop_item(self) -> "TResponseInputItem | None":
        """Remove the latest item and return it; None if there is none."""
        return await run_shielded(self._pop)

    async def clear_session(self) -> None:
        """Remove all items from the conversation. The turns stay readable in Corral."""
        await run_shielded(self._clear)

    # -- in a thread ----------------------------------------------------------------------------

    def _open_session(self) -> Session:
        if self.session_id.startswith("ses_"):
            return self._store.sessions.get(self.session_id)
        return self._store.sessions.open(
            provider=PROVIDER, provider_session=self.session_id, **self._options
        )

    def _items(self, limit: int | None) -> "list[TResponseInputItem]":
        items: list[Any] = []
        if limit is not None and limit <= 0:
            return items
        for turn in self._current_turns(PAGE if limit is None else min(limit + 10, PAGE)):
            if limit is not None and len(items) >= limit:
                break
            item = item_from_turn(turn)
            if item is not None:
                items.append(item)
        return items[::-1]

    def _current_turns(self, page_size: int) -> Iterator[Turn]:
        """Yield the turns since the last clear, without removed ones, newest first."""
        cleared = self._store.sessions.get(self.corral_id).cleared_turn
        removed: set[int] = set()
        for turn in iter_all(
            self._store.sessions.turns, self.corral_id, newest=True, limit=page_size
        ):
            if turn.number <= cleared:
                return
            if (number := find_undone_number(turn)) is not None:
                removed.add(number)
            elif turn.number not in removed:
                yield turn

    def _add(self, turns: list[NewTurn]) -> None:
        if len(turns) == 1:
            fields = msgspec.structs.asdict(turns[0])
            del fields["at"]
            self._store.sessions.append(self.corral_id, **fields)
            return
        for first in range(0, len(turns), PAGE):
            self._store.sessions.append_many(self.corral_id, turns[first : first + PAGE])

    def _pop(self) -> Any:
        while (turn := self._store.sessions.undo(self.corral_id)) is not None:
            if (item := item_from_turn(turn)) is not None:
                return item
        return None

    def _clear(self) -> None:
        self._store.sessions.clear(self.corral_id, keep_provider_session=True)


# -- items and turns ------------------------------------------------------------------------------


def turn_from_item(item: dict[str, Any]) -> NewTurn:
    """Convert an item to a turn: its text as content, and the complete item in `meta`.

    A plain message has no `meta`. Characters that a store cannot hold (NUL, lone surrogates) are
    replaced in the content, and preserved in the item.
    """
    role, kind = item.get("role"), str(item.get("type") or "message")
    content = _storable(_text_of(item))
    if content and item.keys() == _PLAIN and item["content"] == content and role in _SPEAKERS:
        return NewTurn(str(role), content)
    arguments = item.get("arguments")
    return NewTurn(
        _ROLES.get(str(role), str(role)) if role else _role_of(kind),
        content,
        tool_call_id=_short(item.get("call_id")),
        tool_name=_short(item.get("name") or (kind if kind.endswith("_call") else None)),
        arguments=_arguments(arguments) if arguments else None,
        meta={"item": json.dumps(item, ensure_ascii=True)},
    )


def item_from_turn(turn: Turn) -> dict[str, Any] | None:
    """Return the item that a turn was made of; for a turn from another source, its text."""
    encoded = turn.meta.get("item") if isinstance(turn.meta, dict) else None
    if isinstance(encoded, str):
        try:
            item = json.loads(encoded)
        except ValueError:
            item = None
        if isinstance(item, dict):
            return item
    if not turn.content:
        return None
    # A model rejects a tool result without the call that it belongs to.
    return {
        "role": "assistant" if turn.role == "tool" else str(turn.role),
        "content": turn.content,
    }


def _role_of(kind: str) -> str:
    return "tool" if kind.endswith("_output") else "assistant"


def _text_of(item: dict[str, Any]) -> str:
    """Return the readable text of an item."""
    for name in ("content", "output", "summary", "input"):
        value = item.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            parts: list[dict[str, Any]] = [part for part in value if isinstance(part, dict)]
            texts = (part.get("text") or part.get("refusal") for part in parts)
            return "\n".join(text for text in texts if isinstance(text, str))
    return ""


def _storable(text: str) -> str:
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _short(text: Any) -> str | None:
    return _storable(str(text))[:200].encode()[:200].decode("utf-8", "ignore") if text else None


def _arguments(text: Any) -> Any:
    """Return the arguments of a tool call, decoded if they are JSON."""
    plain = str(text)
    if "\\u0000" not in plain and plain.count("[") + plain.count("{") < MAX_DEPTH:
        with suppress(msgspec.DecodeError, UnicodeError):
            return msgspec.json.decode(plain)
    return _storable(plain)
