"""Chat: talks with agents in the dashboard itself, which is a channel of kind `web`.

A page shows what the store has of a place; so it is the same after a reload, in another window,
and after the daemon was started anew.
"""

import hashlib
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import Response

from corral.adapters.channels.contract import Incoming, Kind
from corral.domain.chat.model import Channel, Message, Place, files_of
from corral.domain.questions.model import Question
from corral.kernel.errors import Invalid, NotFound
from corral.web.message_status import Fate, follow
from corral.web.request import Show, Visit

KIND = "web"
NAME = "dashboard"
"""The channel that is made for the first talk."""
SHOWN = 50
TALKS = 100
CHOICES = 200
UPLOAD = 9 << 20
"""Bytes of files that are sent at once: a request holds somewhat more, with the words."""


class Line(msgspec.Struct):
    """A message as it is read: with later words in place of its first ones, and signs on it."""

    message: Message
    fate: Fate
    text: str
    edited: bool = False
    signs: list[str] = []
    question: Question | None = None

    @property
    def files(self) -> list[dict[str, Any]]:
        return files_of(self.message)


# -- looking --------------------------------------------------------------------------------------


def show_all(visit: Visit) -> Response:
    return _show(visit, None)


def show_one(visit: Visit) -> Response:
    """The latest messages of a talk; `before` leads further back."""
    return _show(visit, _place(visit, visit.path("id")))


def _show(visit: Visit, place: Place | None) -> Response:
    store, before = visit.store, visit.asked("before")
    channels = [each for each in store.channels.list(limit=CHOICES).items if each.kind == KIND]
    talks, more = [], False
    for channel in channels:
        page = store.places.list(channel=channel.id, limit=TALKS)
        talks += page.items
        more = more or page.next is not None
    values: dict[str, Any] = {"lines": [], "earlier": None, "last": "", "working": []}
    ids: list[str | None] = []
    if place is not None:
        read = store.messages.list(place=place.id, after=before, limit=SHOWN)
        messages = read.items[::-1]
        working = [each for each in store.gateway.talks(place.id) if each.run_id is not None]
        values = {
            "lines": lines_of(visit, messages),
            "earlier": read.next,
            "last": messages[-1].id if messages else "",
            "working": working,
        }
        ids = [each.agent_id for each in working]
        ids += [id for each in messages for id in (each.agent_id, each.sender_id)]
        ids += [route.agent_id for each in messages for route in each.routes]
    return visit.show(
        "chat.html",
        place=place,
        talks=talks,
        more=more,
        back=before is not None,
        user=_user(visit),
        most=min(store.settings.get("gateway.max_file_bytes").value, UPLOAD),
        agents=store.agents.list(limit=CHOICES).items,
        projects=store.projects.list(limit=CHOICES).items if visit.may_act else [],
        names=visit.names(ids),
        **values,
    )


def _place(visit: Visit, id: str) -> Place:
    """A place of the dashboard; others are talked in where they are."""
    place = visit.store.places.get(id)
    if (channel := visit.store.channels.get(place.channel_id)).kind != KIND:
        raise Invalid(
            f"{place.called} is on {channel.name}; people talk there, and "
            f"/gateway?place={place.id} shows what they say.",
            place=place.id,
        )
    return place


def lines_of(visit: Visit, messages: list[Message]) -> list[Line]:
    """Messages in their order, each edit and sign with the message that it is about."""
    fates = follow(visit, messages)
    lines: list[Line] = []
    by_platform: dict[str, Line] = {}
    for message in messages:
        about = by_platform.get(message.reply_to or "")
        if about is not None and message.kind is Kind.EDIT:
            about.text, about.edited = message.text, True
        elif about is not None and message.kind is Kind.REACTION:
            about.signs = [*about.signs, message.text]
        else:
            line = Line(message, fates[message.id], message.text)
            line.question = _question(visit, message)
            lines.append(line)
            by_platform |= dict.fromkeys(message.platform_ids, line)
    return lines


def _question(visit: Visit, message: Message) -> Question | None:
    if message.kind is not Kind.QUESTION:
        return None
    with suppress(NotFound):
        return visit.store.questions.get(str((message.data or {}).get("question")))
    return None


# -- talking --------------------------------------------------------------------------------------


def begin(visit: Visit) -> Response:
    """Begin a talk with an agent, or go on with the one that there is."""
    store = visit.store
    agent = store.agents.get(visit.must("agent", "The agent"))
    project = visit.given("project")
    where = store.projects.get(project) if project else None
    own = f"{_user(visit)}:{agent.id}" + (f":{where.id}" if where else "")
    channel = _channel(visit)
    try:
        place = store.places.get(f"{channel.name}/{own}")
    except NotFound:
        called = agent.name + (f" in {where.name}" if where else "")
        place = store.places.meet(channel.name, own, name=called, direct=True)
    if all(route.agent_id != agent.id for route in store.wirings.try_out(place.id, "hello")):
        store.wirings.add(agent.id, place=place.id, project=where.id if where else None)
    return visit.done("", go=f"/chat/{place.id}")


def _channel(visit: Visit) -> Channel:
    """The dashboard's channel; it is made when it is first needed."""
    store = visit.store
    for channel in store.channels.list(limit=CHOICES).items:
        if channel.kind == KIND:
            return channel
    return store.channels.add(NAME, KIND, policy="strict")


def say(visit: Visit) -> Response:
    """Say something; what is sent twice from one state of the page is said once."""
    place = _place(visit, visit.must("id", "The talk"))
    files = visit.uploads
    text = (visit.given("text") or "") if files else visit.must("text", "The text")
    seen = hashlib.sha256(f"{visit.given('after')}\0{text}".encode())
    for file in files:
        seen.update(f"\0{file.name}\0".encode(errors="replace") + (file.data or b""))
    _tell(visit, place, event_id=seen.hexdigest()[:32], text=text, attached=files)
    return visit.done("")


def answer(visit: Visit) -> Response:
    """Answer a question on its card; whether it counts, the gateway says in the talk."""
    place = _place(visit, visit.must("id", "The talk"))
    question = visit.must("question", "The question")
    text = visit.must("answer", "The answer")
    seen = hashlib.sha256(f"{question}\0{visit.given('after')}\0{text}".encode()).hexdigest()[:32]
    _tell(visit, place, event_id=seen, text=text, kind=Kind.ANSWER, question=question)
    return visit.done("")


def _tell(visit: Visit, place: Place, event_id: str, **said: Any) -> None:
    user = _user(visit)
    own = f"{place.id}:{event_id}"
    visit.store.messages.receive(
        place.channel_id,
        Incoming(
            event_id=own,
            message_id=own,
            place=place.platform_id,
            direct=place.direct,
            sender=user,
            **said,
        ),
    )


def _user(visit: Visit) -> str:
    return visit.person.removeprefix("user:")


CHATTING: dict[str, Show] = {"chat/begin": begin, "chat/say": say, "chat/answer": answer}
