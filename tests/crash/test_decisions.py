"""Crashes of decision operations: verdicts and outcome letters happen once."""

from pathlib import Path

from corral.api import Corral
from corral.domain.decisions.model import Decision
from corral.kernel.clock import HOUR
from corral.kernel.errors import Conflict
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit

ANN, ADA, LEAD = "user:ann", "agent:ada", "agent:lead"


def list_decisions(store: Corral) -> list[Decision]:
    return store.decisions.list().items


def list_notices(store: Corral, mailbox: str) -> list[tuple[str, str]]:
    letters = store.mail.list(mailbox=mailbox, all=True).items
    return sorted((letter.body["decision"], letter.body["state"]) for letter in letters)


def propose(store: Corral, world: World) -> None:
    for n in range(2):
        decision = store.decisions.record(
            f"Go {n}",
            confirm=True,
            author=ADA,
            answerers=[LEAD, ANN],
            deadline_ms=2 * HOUR,
            key=f"k{n}",
        )
        world.record(decision.id)


def test_proposal_and_letters_to_answerers_are_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def check(store: Corral, world: World) -> None:
        ids = sorted(decision.id for decision in list_decisions(store))
        assert len(ids) == 2
        assert {*world.records} == {*ids}
        assert {decision.state for decision in list_decisions(store)} == {"proposed"}
        assert list_notices(store, LEAD) == [(id, "proposed") for id in ids]

    crash_at_every_commit(fresh_url, tmp_path, Scenario(run=propose, recover=propose, check=check))


def test_review_many_is_atomic_after_a_crash(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def confirm(store: Corral, world: World) -> None:
        ids = [decision.id for decision in list_decisions(store)]
        for decision in store.decisions.review_many(ids, "confirm", by=ANN):
            world.record(f"{decision.id} {decision.state}")
            store.decisions.acknowledge(decision.id)

    def reject_otherwise(store: Corral, world: World) -> None:
        ids = [decision.id for decision in list_decisions(store)]
        states = {str(decision.state) for decision in list_decisions(store)}
        assert states in ({"proposed"}, {"confirmed"}), "all or none"
        try:
            store.decisions.review_many(ids, "reject", by=LEAD)
        except Conflict:  # the first verdict counts
            store.decisions.review_many(ids, "confirm", by=ANN)  # the same verdict again

    def check(store: Corral, world: World) -> None:
        (state,) = {str(decision.state) for decision in list_decisions(store)}
        ids = sorted(decision.id for decision in list_decisions(store))
        assert state in ("confirmed", "rejected")
        noted = [record.split()[1] for record in world.records if " " in record]
        assert {*noted} <= {state}
        assert list_notices(store, ADA) == [(id, state) for id in ids]
        assert store.mail.list(mailbox=LEAD).items == []

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(prepare=propose, run=confirm, recover=reject_otherwise, check=check),
    )


def test_expired_proposal_is_never_confirmed(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def sweep(store: Corral, world: World) -> None:
        world.clock.advance(2 * HOUR)
        while store.internal.decisions.expire_due(limit=1):
            pass

    def check(store: Corral, world: World) -> None:
        assert {str(decision.state) for decision in list_decisions(store)} == {"rejected"}
        ids = sorted(decision.id for decision in list_decisions(store))
        assert list_notices(store, ADA) == [(id, "rejected") for id in ids]

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(prepare=propose, run=sweep, recover=sweep, check=check)
    )
