"""Actions on channels: approve senders, wire agents, connect and test channels."""

from typing import Any

from starlette.responses import Response

from corral.domain.chat.outbound.cards import asks_for_secret, find_request_id
from corral.domain.questions.model import QuestionState
from corral.kernel.errors import Conflict, Invalid
from corral.services.chat.model import ChannelHealth
from corral.web.background import run_with_deadline
from corral.web.request import PageHandler, PageRequest
from corral.web.simple_actions import simple_action


def approve_sender(request: PageRequest) -> Response:
    sender = request.store.senders.approve(
        request.require("id", "The account"),
        person=request.field("person"),
        role=request.field("role"),
    )
    return request.success(f"{sender.display_name} approved. Held messages are delivered now.")


def add_wiring(request: PageRequest) -> Response:
    kind, colon, id = request.require("where", "The chat or channel").partition(":")
    if kind not in ("place", "channel") or not colon:
        raise Invalid("No chat or channel is selected. Select one.", where=kind)
    agent = request.store.agents.get(request.require("agent", "The agent"))
    options = _wiring_options(request) | {kind: id}
    wiring = request.store.wirings.add(agent.id, project=request.field("project"), **options)
    return request.success(f"{agent.name} connected (trigger: {wiring.trigger}).")


def change_wiring(request: PageRequest) -> Response:
    wiring = request.store.wirings.change(
        request.require("id", "The wiring"), **_wiring_options(request)
    )
    return request.success(f"Trigger changed to {wiring.trigger}.")


def _wiring_options(request: PageRequest) -> dict[str, Any]:
    """Return the options of a wiring, without the fields that the form omits."""
    names = ("scope", "unmatched", "mode")
    fields = {name: value for name in names if (value := request.field(name)) is not None}
    return {
        "trigger": request.require("trigger", "The trigger"),
        "pattern": request.field("pattern"),  # an empty field clears it
        "priority": request.integer("priority", "the priority") or 0,
        **fields,
    }


def add_channel(request: PageRequest) -> Response:
    channel = request.store.channels.add(
        request.require("name", "The name"),
        request.require("kind", "The kind"),
        config=_pairs(request, "config"),
        secrets=_pairs(request, "secrets"),
        policy=request.field("policy") or "ask",
        on_unconfirmed=request.field("on_unconfirmed") or "give_up",
    )
    return request.success(f"Channel {channel.name} added. Test the connection.")


def _pairs(request: PageRequest, field: str) -> dict[str, str]:
    """Parse a field of NAME=VALUE lines."""
    pairs = {}
    for line in (request.field(field) or "").splitlines():
        name, equals, value = line.partition("=")
        if line.strip() and not equals:
            raise Invalid(
                f"Invalid line {line[:50]!r}: expected NAME=VALUE, one per line.", field=field
            )
        if line.strip():
            pairs[name.strip()] = value.strip()
    return pairs


def test_channel(request: PageRequest) -> Response:
    store, id = request.store, request.require("id", "The channel")

    def respond(health: ChannelHealth) -> Response:
        return request.success(f"{health.channel}: {health.error or 'connection OK'}.")

    return run_with_deadline(request, lambda: store.channels.test(id), respond)


def set_policy(request: PageRequest) -> Response:
    place = request.store.places.set_policy(
        request.require("id", "The chat"), request.field("policy")
    )
    return request.success(
        f"Policy for unknown senders in {place.display_name}: {place.policy or 'channel default'}."
    )


def give_secret(request: PageRequest) -> Response:
    """Store a secret that an agent requested, under the name in the request.

    The value goes to the secret store only, never into a response, a record or a message.
    """
    store = request.store
    question = store.questions.get(request.require("question", "The question"))
    request_id = find_request_id(question) if asks_for_secret(question) else None
    if request_id is None:
        raise Invalid("This question does not request a secret. Answer it with its buttons.")
    if question.state is not QuestionState.OPEN:
        raise Conflict("The request is no longer open. Reload the page.")
    name = store.host_requests.get(request_id).arguments["name"]
    store.secrets.save_value(name, request.require("value", "The secret"), where="file")
    store.host_requests.complete_secret_requests()
    return request.success(f"Secret {name} stored. The agent was notified.")


CHANNEL_ACTIONS: dict[str, PageHandler] = {
    "secrets/give": give_secret,
    "senders/approve": approve_sender,
    "senders/block": simple_action(
        lambda store: store.senders.block,
        "account",
        lambda sender: f"{sender.display_name} blocked. Held messages were rejected.",
    ),
    "wirings/add": add_wiring,
    "wirings/change": change_wiring,
    "wirings/remove": simple_action(
        lambda store: store.wirings.remove, "wiring", lambda _: "Wiring removed."
    ),
    "channels/add": add_channel,
    "channels/test": test_channel,
    "channels/remove": simple_action(
        lambda store: store.channels.remove,
        "channel",
        lambda channel: f"Channel {channel.name} removed.",
        redirect_to="/messaging/channels",
    ),
    "places/policy": set_policy,
    "places/block": simple_action(
        lambda store: store.places.block,
        "place",
        lambda place: f"{place.display_name} blocked.",
    ),
    "places/unblock": simple_action(
        lambda store: store.places.unblock,
        "place",
        lambda place: f"{place.display_name} unblocked.",
    ),
}
