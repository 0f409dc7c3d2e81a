"""Chat with agents in the dashboard, which is a channel of kind `web`.

The page shows the messages of a place from the store, so it is the same after a reload, in another
window, and after a restart of the daemon.
"""

import hashlib
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import Response

from corral.adapters.channels.contract import IncomingEvent, MessageKind
from corral.domain.chat.model import Channel, Message, Place, list_files
from corral.domain.questions.model import Question
from corral.kernel.errors import Invalid, NotFound
from corral.web.message_status import DeliveryStatus, delivery_statuses
from corral.web.request import PageHandler, PageRequest

KIND = "web"
NAME = "dashboard"
"""The channel that the first conversation creates."""
MAX_SHOWN = 50
MAX_CONVERSATIONS = 100
MAX_CHOICES = 200
MAX_UPLOAD_BYTES = 9 << 20
"""All files of a message; the request limit is slightly larger, for the text."""


class ChatEntry(msgspec.Struct):
    """A message with its edits and reactions applied."""

    message: Message
    status: DeliveryStatus
    text: str
    edited: bool = False
    reactions: list[str] = []
    question: Question | None = None

    @property
    def files(self) -> list[dict[str, Any]]:
        return list_files(self.message)


# -- pages ----------------------------------------------------------------------------------------


def show_all(request: PageRequest) -> Response:
    return _show(request, None)


def show_one(request: PageRequest) -> Response:
    """Show the latest messages of a conversation, or those before the cursor `before`."""
    return _show(request, _place(request, request.path_param("id")))


def _show(request: PageRequest, place: Place | None) -> Response:
    store, before = request.store, request.query("before")
    channels = [
        channel for channel in store.channels.list(limit=MAX_CHOICES).items if channel.kind == KIND
    ]
    conversations, more = [], False
    for channel in channels:
        page = store.places.list(channel=channel.id, limit=MAX_CONVERSATIONS)
        conversations += page.items
        more = more or page.next is not None
    values: dict[str, Any] = {"entries": [], "earlier": None, "last": "", "working": []}
    ids: list[str | None] = []
    if place is not None:
        read = store.messages.list(place=place.id, after=before, limit=MAX_SHOWN)
        messages = read.items[::-1]
        working = [
            conversation
            for conversation in store.chat.conversations(place.id)
            if conversation.run_id is not None
        ]
        values = {
            "entries": list_entries(request, messages),
            "earlier": read.next,
            "last": messages[-1].id if messages else "",
            "working": working,
        }
        ids = [conversation.agent_id for conversation in working]
        ids += [id for message in messages for id in (message.agent_id, message.sender_id)]
        ids += [route.agent_id for message in messages for route in message.routes]
    return request.render(
        "chat.html",
        place=place,
        conversations=conversations,
        more=more,
        back=before is not None,
        user=_user(request),
        max_bytes=min(store.settings.get("chat.max_file_bytes").value, MAX_UPLOAD_BYTES),
        agents=store.agents.list(limit=MAX_CHOICES).items,
        projects=store.projects.list(limit=MAX_CHOICES).items if request.can_write else [],
        names=request.names(ids),
        **values,
    )


def _place(request: PageRequest, id: str) -> Place:
    """Return a place of the dashboard; raises Invalid for one of another channel."""
    place = request.store.places.get(id)
    if (channel := request.store.channels.get(place.channel_id)).kind != KIND:
        raise Invalid(
            f"{place.display_name} belongs to channel {channel.name}. "
            f"See /messaging?place={place.id} for its messages.",
            place=place.id,
        )
    return place


def list_entries(request: PageRequest, messages: list[Message]) -> list[ChatEntry]:
    """Return messages in order, with edits and reactions applied to their target."""
    statuses = delivery_statuses(request, messages)
    entries: list[ChatEntry] = []
    by_platform: dict[str, ChatEntry] = {}
    for message in messages:
        target = by_platform.get(message.reply_to or "")
        if target is not None and message.kind is MessageKind.EDIT:
            target.text, target.edited = message.text, True
        elif target is not None and message.kind is MessageKind.REACTION:
            target.reactions = [*target.reactions, message.text]
        else:
            entry = ChatEntry(message, statuses[message.id], message.text)
            entry.question = _question(request, message)
            entries.append(entry)
            by_platform |= dict.fromkeys(message.platform_ids, entry)
    return entries


def _question(request: PageRequest, message: Message) -> Question | None:
    if message.kind is not MessageKind.QUESTION:
        return None
    with suppress(NotFound):
        return request.store.questions.get(str((message.data or {}).get("question")))
    return None


# -- actions --------------------------------------------------------------------------------------


def start_chat(request: PageRequest) -> Response:
    """Start a conversation with an agent, or open the existing one."""
    store = request.store
    agent = store.agents.get(request.require("agent", "The agent"))
    project = request.field("project")
    scope = store.projects.get(project) if project else None
    platform_id = f"{_user(request)}:{agent.id}" + (f":{scope.id}" if scope else "")
    channel = _channel(request)
    try:
        place = store.places.get(f"{channel.name}/{platform_id}")
    except NotFound:
        name = agent.name + (f" in {scope.name}" if scope else "")
        place = store.places.register(channel.name, platform_id, name=name, direct=True)
    if all(route.agent_id != agent.id for route in store.wirings.preview(place.id, "hello")):
        store.wirings.add(agent.id, place=place.id, project=scope.id if scope else None)
    return request.success("", redirect_to=f"/chat/{place.id}")


def _channel(request: PageRequest) -> Channel:
    """Return the dashboard's channel; create it at first use."""
    store = request.store
    for channel in store.channels.list(limit=MAX_CHOICES).items:
        if channel.kind == KIND:
            return channel
    return store.channels.add(NAME, KIND, policy="strict")


def send_message(request: PageRequest) -> Response:
    """Send a message. A form that is submitted twice sends it once."""
    place = _place(request, request.require("id", "The conversation"))
    files = request.uploads
    text = (request.field("text") or "") if files else request.require("text", "The text")
    digest = hashlib.sha256(f"{request.field('after')}\0{text}".encode())
    for file in files:
        digest.update(f"\0{file.name}\0".encode(errors="replace") + (file.data or b""))
    _receive(request, place, event_id=digest.hexdigest()[:32], text=text, attached=files)
    return request.success("")


def answer(request: PageRequest) -> Response:
    """Answer the question of a card. The conversation shows whether the answer counted."""
    place = _place(request, request.require("id", "The conversation"))
    question = request.require("question", "The question")
    text = request.require("answer", "The answer")
    digest = hashlib.sha256(f"{question}\0{request.field('after')}\0{text}".encode()).hexdigest()[
        :32
    ]
    _receive(request, place, event_id=digest, text=text, kind=MessageKind.ANSWER, question=question)
    return request.success("")


def _receive(request: PageRequest, place: Place, event_id: str, **content: Any) -> None:
    user = _user(request)
    id = f"{place.id}:{event_id}"
    request.store.messages.receive(
        place.channel_id,
        IncomingEvent(
            event_id=id,
            message_id=id,
            place=place.platform_id,
            direct=place.direct,
            sender=user,
            **content,
        ),
    )


def _user(request: PageRequest) -> str:
    return request.user.removeprefix("user:")


CHAT_ACTIONS: dict[str, PageHandler] = {
    "chat/start": start_chat,
    "chat/send": send_message,
    "chat/answer": answer,
}
