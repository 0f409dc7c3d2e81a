"""Crashes of delegation operations: results, cancellations and expiry happen once."""

from pathlib import Path

from corral.api import Corral
from corral.domain.delegations.model import Delegation
from corral.kernel.clock import HOUR
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit

ANN = "user:ann"


def list_delegations(store: Corral) -> dict[str, Delegation]:
    return {delegation.text: delegation for delegation in store.delegations.list(all=True).items}


def list_notices(store: Corral, mailbox: str) -> list[tuple[str, str]]:
    """Return the delegations and states that a mailbox was notified of."""
    letters = store.mail.list(mailbox=mailbox, all=True).items
    ends = [letter.body for letter in letters if letter.body["kind"] != "delegation"]
    return sorted((body["delegation"], body["state"]) for body in ends)


def delegate(store: Corral, world: World) -> None:
    """Ann delegates to ada, and ada delegates a part of it to ben."""
    for name in ("ada", "ben"):
        store.agents.create(name, provider="scripted")
    deadline = store.now() + 2 * HOUR
    whole = store.delegations.delegate("ada", "whole", sender=ANN, deadline_at=deadline)
    store.delegations.delegate("ben", "part", agent="ada", parent=whole.id, deadline_at=deadline)


def test_result_is_sent_once(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def finish(store: Corral, world: World) -> None:
        for text, agent in (("part", "ben"), ("whole", "ada")):
            finished = store.delegations.finish(
                list_delegations(store)[text].id, f"{text} is done", agent=agent
            )
            world.record(finished.id)

    def check(store: Corral, world: World) -> None:
        delegations = list_delegations(store)
        assert {*world.records} == {delegation.id for delegation in delegations.values()}
        assert {(delegation.state, delegation.result) for delegation in delegations.values()} == {
            ("done", "part is done"),
            ("done", "whole is done"),
        }
        assert list_notices(store, ANN) == [(delegations["whole"].id, "done")]
        assert list_notices(store, "agent:ada") == [(delegations["part"].id, "done")]

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(prepare=delegate, run=finish, recover=finish, check=check)
    )


def test_cancel_with_parts_is_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def cancel(store: Corral, world: World) -> None:
        store.delegations.cancel(list_delegations(store)["whole"].id, reason="not needed")

    def cancel_once(store: Corral, world: World) -> None:
        (state,) = {delegation.state for delegation in list_delegations(store).values()}
        letters = store.mail.list(mailbox="agent:ben").items
        assert len(letters) == (1 if state == "active" else 0), "the unread letter is removed"
        if state == "active":
            cancel(store, world)

    def check(store: Corral, world: World) -> None:
        assert {delegation.state for delegation in list_delegations(store).values()} == {
            "cancelled"
        }
        assert store.mail.list().items == []

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(prepare=delegate, run=cancel, recover=cancel_once, check=check),
    )


def test_expiry_is_reported_once(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def sweep(store: Corral, world: World) -> None:
        world.clock.advance(2 * HOUR)
        store.delegations.expire_due()

    def check(store: Corral, world: World) -> None:
        delegations = list_delegations(store)
        assert {delegation.state for delegation in delegations.values()} == {"expired"}
        assert list_notices(store, ANN) == [(delegations["whole"].id, "expired")]
        assert list_notices(store, "agent:ada") == [(delegations["part"].id, "expired")]

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(prepare=delegate, run=sweep, recover=sweep, check=check)
    )
