"""The gateway: what was said on channels and what became of it, who may talk, who hears."""

from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from corral.adapters.channels import registry
from corral.domain.chat.conversations.payloads import chat_of
from corral.domain.chat.model import (
    InDoubt,
    Message,
    Mode,
    Place,
    Policy,
    Role,
    Scope,
    Trigger,
    Unheard,
    files_of,
)
from corral.domain.mail.model import Letter
from corral.kernel.errors import Invalid, NotFound
from corral.kernel.text import printable
from corral.web.message_status import follow
from corral.web.request import Visit

VIEWS = {
    "Messages": "/gateway",
    "Strangers": "/gateway/held",
    "Dead letters": "/gateway/dead",
    "Wirings": "/gateway/wirings",
    "Channels": "/gateway/channels",
}
# What letters can be looked at, and what that means.
ENDS = {
    "dead": "failed too often",
    "unknown": "may or may not have arrived",
    "refused": "turned away",
    "expired": "nobody took them in time",
}
CHOICES = 200
LETTERS = 200
HISTORY = 50

# What can be chosen, and what each choice means.
TRIGGERS = {
    Trigger.ALWAYS: "every message",
    Trigger.MENTION: "when it is addressed",
    Trigger.STICKY: "when addressed, and then the whole thread",
    Trigger.PATTERN: "when the words fit a pattern",
    Trigger.COMMAND: "on a command",
}
MODES = {
    Mode.SHARED: "one for the place",
    Mode.THREAD: "one for each thread",
    Mode.AGENT: "one for all its places",
}
SCOPES = {Scope.ALL: "everybody who may talk", Scope.KNOWN: "people we know"}
UNHEARD = {Unheard.DROP: "never told", Unheard.KEEP: "told with the next"}


# -- messages -------------------------------------------------------------------------------------


def show_all(visit: Visit) -> Response:
    """What was said both ways: everywhere, in a place, or in a session."""
    store = visit.store
    place, session = visit.asked("place"), visit.asked("session")
    page = store.messages.list(place=place, session=session, after=visit.asked("after"))
    chosen = store.places.get(place) if place else None
    talks = store.gateway.talks(chosen.id) if chosen else []
    return visit.show(
        "gateway.html",
        views=VIEWS,
        page=page,
        fates=follow(visit, page.items),
        files={message.id: len(files_of(message)) for message in page.items},
        chosen=chosen,
        session=session,
        talks=talks,
        places=_places(visit, chosen),
        names=visit.names(
            *(_ids(message) for message in page.items),
            [session],
            (id for talk in talks for id in (talk.agent_id, talk.session_id)),
        ),
    )


def _places(visit: Visit, chosen: Place | None = None) -> list[Place]:
    """What one chooses places from; the one that was chosen is among them."""
    found = visit.store.places.list(limit=CHOICES).items
    if chosen is None or any(each.id == chosen.id for each in found):
        return found
    return [*found, chosen]


def _ids(message: Message) -> list[str | None]:
    """Everything that a message names."""
    heard = [id for route in message.routes for id in (route.agent_id, route.session_id)]
    own = [message.place_id, message.channel_id, message.sender_id, message.agent_id]
    return [*own, message.run_id, *heard]


def show_one(visit: Visit) -> Response:
    """One message, and its way: who heard it and why, or how it went out."""
    store = visit.store
    message = store.messages.get(visit.path("id"))
    fate = follow(visit, [message])[message.id]
    letters = [fate.letter] if fate.letter else []
    letters += [each.letter for each in fate.hearers if each.letter]
    history = store.events.newest(subject=message.id, limit=HISTORY).items
    for letter in letters[:10]:
        history += store.events.newest(subject=letter.id, limit=HISTORY).items
    return visit.show(
        "message.html",
        message=message,
        fate=fate,
        files=files_of(message),
        letters={letter.id: letter for letter in letters},
        place=store.places.get(message.place_id),
        history=sorted(history, key=lambda event: (event.at, event.cursor)),
        names=visit.names(_ids(message)),
    )


def download(visit: Visit) -> Response:
    """A file of a message. Whoever sent it may have made it for a browser to run: it is bytes to be
    kept, and nothing that a page shows."""
    number = visit.path("number")
    file, data = visit.store.messages.file(
        visit.path("id"), int(number) if number.isascii() and number.isdigit() else 0
    )
    name = quote(printable(file.name), safe="")
    return Response(
        data,
        media_type="application/octet-stream",
        headers={
            "content-disposition": f"attachment; filename*=UTF-8''{name}",
            "content-security-policy": "sandbox",
        },
    )


# -- strangers and dead letters -------------------------------------------------------------------


def show_held(visit: Visit) -> Response:
    """What waits to be let in, account by account."""
    page = visit.store.messages.held(after=visit.asked("after"))
    senders = {
        id: visit.store.senders.get(id)
        for id in dict.fromkeys(str(each.sender_id) for each in page.items)
    }
    return visit.show(
        "held.html",
        views=VIEWS,
        page=page,
        senders=senders,
        roles=list(Role),
        names=visit.names(*(_ids(message) for message in page.items)),
    )


def show_dead(visit: Visit) -> Response:
    """Letters of the gateway that somebody may have to look at, with what they were about."""
    state = visit.asked("state") or "dead"
    if state not in ENDS:
        raise Invalid(f"{state!r} is none of {', '.join(ENDS)}.", state=state)
    asked: dict[str, Any] = {"state": state, "after": visit.asked("after")}
    page = visit.store.mail.list(limit=LETTERS, **asked)
    rows = [
        (letter, message)
        for letter in page.items
        if (message := _message_of(visit, letter)) is not None
    ]
    return visit.show(
        "dead.html",
        views=VIEWS,
        ends=ENDS,
        view=state,
        rows=rows,
        next=page.next,
        names=visit.names(*(_ids(message) for _, message in rows)),
    )


def _message_of(visit: Visit, letter: Letter) -> Message | None:
    """The message that a letter tells an agent, or brings to a platform; None: it has none."""
    id = None
    if letter.mailbox.startswith("place:") and isinstance(letter.body, dict):
        id = letter.body.get("message")
    elif (chat := chat_of(letter)) is not None:
        id = chat.message
    try:
        return visit.store.messages.get(id) if isinstance(id, str) else None
    except (NotFound, Invalid):
        return None


# -- wirings --------------------------------------------------------------------------------------


def show_wirings(visit: Visit) -> Response:
    """Who hears what; with a place and a text, who would hear that, and why."""
    store = visit.store
    page = store.wirings.list(after=visit.asked("after"))
    place, text = visit.asked("place"), visit.asked("text")
    chosen = store.places.get(place) if place else None
    tried = None
    if chosen is not None and text is not None:
        tried = store.wirings.try_out(
            chosen.id,
            text,
            known=visit.asked("stranger") is None,
            mentioned=visit.asked("mentioned") is not None,
        )
    shown = [id for each in page.items for id in (each.agent_id, each.place_id, each.channel_id)]
    return visit.show(
        "wirings.html",
        views=VIEWS,
        page=page,
        chosen=chosen,
        text=text,
        tried=tried,
        places=_places(visit, chosen),
        channels=store.channels.list(limit=CHOICES).items,
        agents=store.agents.list(limit=CHOICES).items if visit.may_act else [],
        projects=store.projects.list(limit=CHOICES).items if visit.may_act else [],
        manner={
            "trigger": ("Hears", TRIGGERS),
            "scope": ("From", SCOPES),
            "unheard": ("What does not wake it", UNHEARD),
            "mode": ("Session", MODES),
        },
        names=visit.names(
            shown,
            (each.project_id for each in page.items),
            (each.agent_id for each in tried or []),
        ),
    )


# -- channels -------------------------------------------------------------------------------------


def show_channels(visit: Visit) -> Response:
    every = visit.asked("all") is not None
    return visit.show(
        "channels.html",
        views=VIEWS,
        page=visit.store.channels.list(all=every, after=visit.asked("after")),
        every=every,
        kinds=registry.names(),
        policies=list(Policy),
        rules=list(InDoubt),
    )


def show_channel(visit: Visit) -> Response:
    store = visit.store
    channel = store.channels.get(visit.path("id"))
    return visit.show(
        "channel.html",
        channel=channel,
        policies=list(Policy),
        page=store.places.list(channel=channel.id, after=visit.asked("after")),
    )
