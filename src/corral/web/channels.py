"""Channels: messages and their delivery, held senders, failed messages, wirings, places."""

from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from corral.adapters.channels import registry
from corral.domain.chat.model import (
    Message,
    PersonRole,
    Place,
    SessionMode,
    StrangerPolicy,
    Trigger,
    UnconfirmedPolicy,
    UnmatchedPolicy,
    WiringScope,
    list_files,
)
from corral.domain.chat.payloads import parse_chat
from corral.domain.mail.model import Letter
from corral.kernel.display_text import escape_unprintable
from corral.kernel.errors import Invalid, NotFound
from corral.web.message_status import delivery_statuses
from corral.web.request import PageRequest

VIEWS = {
    "Messages": "/messaging",
    "Approvals": "/messaging/approvals",
    "Failed": "/messaging/dead",
    "Wirings": "/messaging/wirings",
    "Channels": "/messaging/channels",
}
# The filters of failed messages, with their descriptions.
FAILED_STATES = {
    "dead": "failed after all attempts",
    "unconfirmed": "delivery unconfirmed",
    "refused": "refused",
    "expired": "expired",
}
MAX_CHOICES = 200
MAX_LETTERS = 200
MAX_HISTORY = 50

# Options of a wiring, with their descriptions.
TRIGGERS = {
    Trigger.ALWAYS: "every message",
    Trigger.MENTION: "when mentioned",
    Trigger.STICKY: "when mentioned, then the whole thread",
    Trigger.PATTERN: "when the text matches a pattern",
    Trigger.COMMAND: "on a command",
}
MODES = {
    SessionMode.SHARED: "one per chat",
    SessionMode.THREAD: "one per thread",
    SessionMode.AGENT: "one for all chats",
}
SCOPES = {
    WiringScope.ALL: "all senders that the channel accepts",
    WiringScope.KNOWN: "known people",
}
UNMATCHED = {UnmatchedPolicy.DROP: "dropped", UnmatchedPolicy.KEEP: "kept as context"}


# -- messages -------------------------------------------------------------------------------------


def show_all(request: PageRequest) -> Response:
    """List inbound and outbound messages: all, of a place, or of a session."""
    store = request.store
    place, session = request.query("place"), request.query("session")
    page = store.messages.list(place=place, session=session, after=request.query("after"))
    chosen = store.places.get(place) if place else None
    conversations = store.chat.conversations(chosen.id) if chosen else []
    return request.render(
        "channel_messages.html",
        views=VIEWS,
        page=page,
        statuses=delivery_statuses(request, page.items),
        files={message.id: len(list_files(message)) for message in page.items},
        chosen=chosen,
        session=session,
        conversations=conversations,
        places=_places(request, chosen),
        names=request.names(
            *(_ids(message) for message in page.items),
            [session],
            (id for row in conversations for id in (row.agent_id, row.session_id)),
        ),
    )


def _places(request: PageRequest, chosen: Place | None = None) -> list[Place]:
    """Return the places to choose from, including the selected one."""
    places = request.store.places.list(limit=MAX_CHOICES).items
    if chosen is None or any(place.id == chosen.id for place in places):
        return places
    return [*places, chosen]


def _ids(message: Message) -> list[str | None]:
    """Return the ids of everything that a message refers to."""
    routed = [id for route in message.routes for id in (route.agent_id, route.session_id)]
    own = [message.place_id, message.channel_id, message.sender_id, message.agent_id]
    return [*own, message.run_id, *routed]


def show_one(request: PageRequest) -> Response:
    """Show one message: its routing and delivery."""
    store = request.store
    message = store.messages.get(request.path_param("id"))
    status = delivery_statuses(request, [message])[message.id]
    letters = [status.letter] if status.letter else []
    letters += [recipient.letter for recipient in status.recipients if recipient.letter]
    history = store.events.newest(subject=message.id, limit=MAX_HISTORY).items
    for letter in letters[:10]:
        history += store.events.newest(subject=letter.id, limit=MAX_HISTORY).items
    return request.render(
        "channel_message.html",
        message=message,
        status=status,
        files=list_files(message),
        letters={letter.id: letter for letter in letters},
        place=store.places.get(message.place_id),
        history=sorted(history, key=lambda event: (event.at, event.cursor)),
        names=request.names(_ids(message)),
    )


def download(request: PageRequest) -> Response:
    """Download a file of a message.

    Files are untrusted: they are served as a download and sandboxed, never shown in a page.
    """
    number = request.path_param("number")
    file, data = request.store.messages.file(
        request.path_param("id"), int(number) if number.isascii() and number.isdigit() else 0
    )
    name = quote(escape_unprintable(file.name), safe="")
    return Response(
        data,
        media_type="application/octet-stream",
        headers={
            "content-disposition": f"attachment; filename*=UTF-8''{name}",
            "content-security-policy": "sandbox",
        },
    )


# -- held and failed messages ---------------------------------------------------------------------


def show_approvals(request: PageRequest) -> Response:
    """List messages of senders that wait for approval, by sender."""
    page = request.store.messages.awaiting_approval(after=request.query("after"))
    senders = {
        id: request.store.senders.get(id)
        for id in dict.fromkeys(str(message.sender_id) for message in page.items)
    }
    return request.render(
        "approval_messages.html",
        views=VIEWS,
        page=page,
        senders=senders,
        roles=list(PersonRole),
        names=request.names(*(_ids(message) for message in page.items)),
    )


def show_dead(request: PageRequest) -> Response:
    """List letters of chat messages that failed or are unconfirmed."""
    state = request.query("state") or "dead"
    if state not in FAILED_STATES:
        raise Invalid(
            f"Invalid state {state!r}: expected one of {', '.join(FAILED_STATES)}.", state=state
        )
    filters: dict[str, Any] = {"state": state, "after": request.query("after")}
    page = request.store.mail.list(limit=MAX_LETTERS, **filters)
    rows = [
        (letter, message)
        for letter in page.items
        if (message := _message_of(request, letter)) is not None
    ]
    return request.render(
        "failed_messages.html",
        views=VIEWS,
        states=FAILED_STATES,
        view=state,
        rows=rows,
        next=page.next,
        names=request.names(*(_ids(message) for _, message in rows)),
    )


def _message_of(request: PageRequest, letter: Letter) -> Message | None:
    """Return the chat message that a letter delivers to an agent or a platform, if any."""
    id = None
    if letter.mailbox.startswith("place:") and isinstance(letter.body, dict):
        id = letter.body.get("message")
    elif (chat := parse_chat(letter)) is not None:
        id = chat.message
    try:
        return request.store.messages.get(id) if isinstance(id, str) else None
    except (NotFound, Invalid):
        return None


# -- wirings --------------------------------------------------------------------------------------


def show_wirings(request: PageRequest) -> Response:
    """List wirings; with a place and a text, test which agents would get that message."""
    store = request.store
    page = store.wirings.list(after=request.query("after"))
    place, text = request.query("place"), request.query("text")
    chosen = store.places.get(place) if place else None
    test_result = None
    if chosen is not None and text is not None:
        test_result = store.wirings.preview(
            chosen.id,
            text,
            known=request.query("stranger") is None,
            mentioned=request.query("mentioned") is not None,
        )
    shown = [
        id for wiring in page.items for id in (wiring.agent_id, wiring.place_id, wiring.channel_id)
    ]
    return request.render(
        "wirings.html",
        views=VIEWS,
        page=page,
        chosen=chosen,
        text=text,
        test_result=test_result,
        places=_places(request, chosen),
        channels=store.channels.list(limit=MAX_CHOICES).items,
        agents=store.agents.list(limit=MAX_CHOICES).items if request.can_write else [],
        projects=store.projects.list(limit=MAX_CHOICES).items if request.can_write else [],
        options={
            "trigger": ("Trigger", TRIGGERS),
            "scope": ("Senders", SCOPES),
            "unmatched": ("Other messages", UNMATCHED),
            "mode": ("Session", MODES),
        },
        names=request.names(
            shown,
            (wiring.project_id for wiring in page.items),
            (route.agent_id for route in test_result or []),
        ),
    )


# -- channels -------------------------------------------------------------------------------------


def show_channels(request: PageRequest) -> Response:
    every = request.query("all") is not None
    return request.render(
        "channels.html",
        views=VIEWS,
        page=request.store.channels.list(all=every, after=request.query("after")),
        every=every,
        kinds=registry.list_kinds(),
        policies=list(StrangerPolicy),
        unconfirmed_policies=list(UnconfirmedPolicy),
    )


def show_channel(request: PageRequest) -> Response:
    store = request.store
    channel = store.channels.get(request.path_param("id"))
    return request.render(
        "channel.html",
        channel=channel,
        policies=list(StrangerPolicy),
        page=store.places.list(channel=channel.id, after=request.query("after")),
    )
