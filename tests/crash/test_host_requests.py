"""Crashes of host requests: an approved request is carried out and reported once."""

from pathlib import Path

from corral.api import Corral
from corral.domain.chat.model import CHAT_MAILBOX
from corral.kernel.errors import Conflict
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit

HELPER = {"name": "helper", "instructions": "Help with mails."}


def ask(store: Corral, world: World) -> None:
    request = store.host_requests.ask("ada", "create_agent", HELPER, key="k")
    world.record(request.id)


def test_approved_request_is_carried_out_and_reported_once(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def prepare(store: Corral, world: World) -> None:
        store.agents.create("ada", provider="scripted", model="small")

    def ask_and_approve(store: Corral, world: World) -> None:
        ask(store, world)
        (question,) = store.questions.list(all=True).items
        try:
            store.questions.answer(question.id, "yes", by="user:ann")
        except Conflict:
            assert question.answer == "yes"
        store.internal.chat.run_upkeep()

    def check(store: Corral, world: World) -> None:
        (request,) = store.host_requests.list().items
        assert {*world.records} == {request.id}
        assert (request.state, request.decided_by) == ("done", "user:ann")
        assert [agent.name for agent in store.agents.list().items] == ["ada", "helper"]
        letters = store.mail.list(mailbox="agent:ada", all=True).items
        assert [letter.body["state"] for letter in letters] == ["done"]
        assert store.mail.list(mailbox=CHAT_MAILBOX).items == []

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(prepare=prepare, run=ask_and_approve, recover=ask_and_approve, check=check),
    )
