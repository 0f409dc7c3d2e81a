"""`CorralSession`: the memory of an agent of openai-agents, in a Corral store.

    from corral.integrations.openai_agents import CorralSession

    session = CorralSession("conversation-7")  # in the user's own store
    result = await Runner.run(agent, "What is in the store?", session=session)

What the agent says is a session of Corral's with its turns: `corral session turns`, the search and
the dashboard show it. Items come back as they were given, to the letter.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from corral.api import Corral
from corral.domain.sessions.model import NewTurn, Session, Turn, taken_back_by
from corral.integrations import store_of, to_its_end
from corral.kernel.pagination import every
from corral.kernel.text import MAX_DEPTH

try:
    from agents.memory import SessionSettings
    from agents.memory.session_settings import resolve_session_limit
except ImportError as error:
    raise ImportError(
        "CorralSession needs openai-agents; run `pip install 'corral[openai-agents]'`."
    ) from error

if TYPE_CHECKING:
    from agents.items import TResponseInputItem

PROVIDER = "openai-agents"
PAGE = 1_000
_PLAIN = {"role", "content"}
_SPEAKERS = ("user", "assistant", "system")
_ROLES = {"developer": "system"}


class CorralSession:
    """openai-agents' Session protocol on Corral's sessions and turns, on either engine."""

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
        """The conversation of this name, or, with an id `ses_…`, any session of the store.

        It is opened when it is first used, for an agent and a project of Corral's if they are
        named. The store is an open one, the one at a URL (a daemon's, with `token`), or the
        user's own.
        """
        self.session_id = session_id
        self.session_settings = session_settings or SessionSettings()
        self._store, self._ours = store_of(store, token)
        self._wishes = {"agent": agent, "project": project, "title": title or session_id[:200]}
        self._id: str | None = None

    @property
    def corral_id(self) -> str:
        """The id under which Corral knows the conversation: `ses_…`."""
        if self._id is None:
            self._id = self._opened().id
        return self._id

    def close(self) -> None:
        """Close the store, unless it was given open."""
        if self._ours:
            self._store.close()

    async def get_items(self, limit: int | None = None) -> "list[TResponseInputItem]":
        """The latest `limit` items in the order in which they were added; all without a limit."""
        most = resolve_session_limit(limit, self.session_settings)
        return await asyncio.to_thread(self._items, most)

    async def add_items(self, items: "Sequence[TResponseInputItem]") -> None:
        """Add items, in their order; up to 1,000 of them all or none."""
        turns = [turn_of(cast(dict[str, Any], item)) for item in items]
        if turns:
            await to_its_end(self._add, turns)

    async def pop_item(self) -> "TResponseInputItem | None":
        """Take back the latest item and give it back; None when there is none."""
        return await to_its_end(self._pop)

    async def clear_session(self) -> None:
        """Begin anew: no item is left. What was said stays readable in Corral."""
        await to_its_end(self._clear)

    # -- on a thread ----------------------------------------------------------------------------

    def _opened(self) -> Session:
        if self.session_id.startswith("ses_"):
            return self._store.sessions.get(self.session_id)
        return self._store.sessions.open(
            provider=PROVIDER, provider_session=self.session_id, **self._wishes
        )

    def _items(self, most: int | None) -> "list[TResponseInputItem]":
        found: list[Any] = []
        if most is not None and most <= 0:
            return found
        for turn in self._standing(PAGE if most is None else min(most + 10, PAGE)):
            if most is not None and len(found) >= most:
                break
            item = item_of(turn)
            if item is not None:
                found.append(item)
        return found[::-1]

    def _standing(self, many: int) -> Iterator[Turn]:
        """Turns since it was last cleared, less those that were taken back; newest first."""
        cleared = self._store.sessions.get(self.corral_id).cleared_turn
        gone: set[int] = set()
        for turn in every(self._store.sessions.turns, self.corral_id, newest=True, limit=many):
            if turn.number <= cleared:
                return
            if (number := taken_back_by(turn)) is not None:
                gone.add(number)
            elif turn.number not in gone:
                yield turn

    def _add(self, turns: list[NewTurn]) -> None:
        if len(turns) == 1:
            given = msgspec.structs.asdict(turns[0])
            del given["at"]
            self._store.sessions.append(self.corral_id, **given)
            return
        for first in range(0, len(turns), PAGE):
            self._store.sessions.append_many(self.corral_id, turns[first : first + PAGE])

    def _pop(self) -> Any:
        while (turn := self._store.sessions.take_back(self.corral_id)) is not None:
            if (item := item_of(turn)) is not None:
                return item
        return None

    def _clear(self) -> None:
        self._store.sessions.clear(self.corral_id, keep_provider_session=True)


# -- items and turns ------------------------------------------------------------------------------


def turn_of(item: dict[str, Any]) -> NewTurn:
    """An item as a turn: its words where people look for them, and the whole of it beside.

    A plain message is its words and nothing else. What a store does not keep (NUL, half a
    character) is replaced in the words, and kept in the item.
    """
    role, kind = item.get("role"), str(item.get("type") or "message")
    words = _words(item)
    content = _storable(words)
    if content and item.keys() == _PLAIN and item["content"] == content and role in _SPEAKERS:
        return NewTurn(str(role), content)
    arguments = item.get("arguments")
    return NewTurn(
        _ROLES.get(str(role), str(role)) if role else _speaker(kind),
        content,
        tool_call_id=_short(item.get("call_id")),
        tool_name=_short(item.get("name") or (kind if kind.endswith("_call") else None)),
        arguments=_arguments(arguments) if arguments else None,
        meta={"item": json.dumps(item, ensure_ascii=True)},
    )


def item_of(turn: Turn) -> dict[str, Any] | None:
    """The item that a turn was made of; of a turn that somebody else wrote, its words."""
    kept = turn.meta.get("item") if isinstance(turn.meta, dict) else None
    if isinstance(kept, str):
        try:
            item = json.loads(kept)
        except ValueError:
            item = None
        if isinstance(item, dict):
            return item
    if not turn.content:
        return None
    # A tool's answer without the call that it belongs to would be refused by the model.
    return {
        "role": "assistant" if turn.role == "tool" else str(turn.role),
        "content": turn.content,
    }


def _speaker(kind: str) -> str:
    return "tool" if kind.endswith("_output") else "assistant"


def _words(item: dict[str, Any]) -> str:
    """What a person would read of an item."""
    for name in ("content", "output", "summary", "input"):
        found = item.get(name)
        if isinstance(found, str):
            return found
        if isinstance(found, list):
            texts = (part.get("text") or part.get("refusal") for part in found if _is_part(part))
            return "\n".join(text for text in texts if isinstance(text, str))
    return ""


def _is_part(part: Any) -> bool:
    return isinstance(part, dict)


def _storable(text: str) -> str:
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _short(text: Any) -> str | None:
    return _storable(str(text))[:200].encode()[:200].decode("utf-8", "ignore") if text else None


def _arguments(text: Any) -> Any:
    """What a tool is called with, as JSON where it is."""
    plain = str(text)
    if "\\u0000" not in plain and plain.count("[") + plain.count("{") < MAX_DEPTH:
        with suppress(msgspec.DecodeError, UnicodeError):
            return msgspec.json.decode(plain)
    return _storable(plain)
