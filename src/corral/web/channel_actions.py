"""What people do for the gateway on the pages: let strangers in, wire agents, connect channels."""

from typing import Any

from starlette.responses import Response

from corral.api.chat import Health
from corral.domain.chat.outbound.cards import asks_for_secret, request_of
from corral.domain.questions.model import QuestionState
from corral.kernel.errors import Conflict, Invalid
from corral.web.background import soon
from corral.web.chat import CHATTING
from corral.web.request import Show, Visit
from corral.web.verbs import on_one


def approve_sender(visit: Visit) -> Response:
    sender = visit.store.senders.approve(
        visit.must("id", "The account"), person=visit.given("person"), role=visit.given("role")
    )
    return visit.done(f"{sender.called} may talk; what waited is heard now.")


def add_wiring(visit: Visit) -> Response:
    kind, colon, id = visit.must("where", "What it is to hear").partition(":")
    if kind not in ("place", "channel") or not colon:
        raise Invalid("Choose a place, or a channel with all its places.", where=kind)
    agent = visit.store.agents.get(visit.must("agent", "The agent"))
    manner = _manner(visit) | {kind: id}
    made = visit.store.wirings.add(agent.id, project=visit.given("project"), **manner)
    return visit.done(f"{agent.name} hears it now ({made.trigger}).")


def change_wiring(visit: Visit) -> Response:
    wiring = visit.store.wirings.change(visit.must("id", "The wiring"), **_manner(visit))
    return visit.done(f"It hears on {wiring.trigger} from now on.")


def _manner(visit: Visit) -> dict[str, Any]:
    """How a wiring hears, as the form says it; what is left out is as everywhere."""
    names = ("pattern", "scope", "unheard", "mode")
    given = {name: value for name in names if (value := visit.given(name)) is not None}
    return {
        "trigger": visit.must("trigger", "What it hears"),
        "priority": visit.number("priority", "a priority") or 0,
        **given,
    }


def add_channel(visit: Visit) -> Response:
    channel = visit.store.channels.add(
        visit.must("name", "The name"),
        visit.must("kind", "The kind"),
        config=_pairs(visit, "config"),
        secrets=_pairs(visit, "secrets"),
        policy=visit.given("policy") or "ask",
        in_doubt=visit.given("in_doubt") or "give_up",
    )
    return visit.done(f"{channel.name} is connected; test it.")


def _pairs(visit: Visit, field: str) -> dict[str, str]:
    """What was typed as NAME=VALUE, one on each line."""
    pairs = {}
    for line in (visit.given(field) or "").splitlines():
        name, equals, value = line.partition("=")
        if line.strip() and not equals:
            raise Invalid(f"{line[:50]!r} is no NAME=VALUE; write one on each line.", field=field)
        if line.strip():
            pairs[name.strip()] = value.strip()
    return pairs


def test_channel(visit: Visit) -> Response:
    store, id = visit.store, visit.must("id", "The channel")

    def told(health: Health) -> Response:
        return visit.done(f"{health.channel}: {health.trouble or 'it works'}.")

    return soon(visit, lambda: store.channels.test(id), told)


def set_policy(visit: Visit) -> Response:
    place = visit.store.places.set_policy(visit.must("id", "The place"), visit.given("policy"))
    return visit.done(f"Strangers in {place.called}: {place.policy or 'as on its channel'}.")


def give_secret(visit: Visit) -> Response:
    """Keep a secret that an agent asked for, under the name that the request has.

    Its value goes to the secret store, and stands in no answer, record or message.
    """
    store = visit.store
    question = store.questions.get(visit.must("question", "The question"))
    request = request_of(question) if asks_for_secret(question) else None
    if request is None:
        raise Invalid("That question asks for no secret; answer it with its buttons.")
    if question.state is not QuestionState.OPEN:
        raise Conflict("It is not asked for any more; reload the page.")
    name = store.requests.get(request).arguments["name"]
    store.secrets.keep(name, visit.must("value", "The secret"), where="file")
    store.requests.secrets_given()
    return visit.done(f"{name} is kept, and whoever asked is told that it is there.")


GATEWAY: dict[str, Show] = {
    **CHATTING,
    "secrets/give": give_secret,
    "senders/approve": approve_sender,
    "senders/block": on_one(
        lambda store: store.senders.block,
        "account",
        lambda sender: f"{sender.called} is blocked; what waited is turned away.",
    ),
    "wirings/add": add_wiring,
    "wirings/change": change_wiring,
    "wirings/remove": on_one(
        lambda store: store.wirings.remove, "wiring", lambda _: "It hears that no more."
    ),
    "channels/add": add_channel,
    "channels/test": test_channel,
    "channels/remove": on_one(
        lambda store: store.channels.remove,
        "channel",
        lambda channel: f"{channel.name} is disconnected.",
        go="/gateway/channels",
    ),
    "places/policy": set_policy,
    "places/block": on_one(
        lambda store: store.places.block,
        "place",
        lambda place: f"Nothing is heard or sent in {place.called} any more.",
    ),
    "places/unblock": on_one(
        lambda store: store.places.unblock,
        "place",
        lambda place: f"{place.called} is heard again.",
    ),
}
