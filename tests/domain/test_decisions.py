"""Decisions: recording, confirmation, deadlines and notifications."""

import pytest

import corral
from corral.api import Corral
from corral.domain.decisions.model import Decision
from corral.kernel.clock import DAY, HOUR, MINUTE, ManualClock
from corral.kernel.errors import Conflict, Invalid, NotYet, Refused
from tests.support.grouped_cases import each_case
from tests.support.store import list_events, raises_without_change, walk
from tests.support.threads import Racer

ANN = "user:ann"


def propose(store: Corral, **options: object) -> Decision:
    arguments: dict[str, object] = {"author": "agent:ada", "confirm": True} | options
    return store.decisions.record("Drop the table", **arguments)


def list_notices(store: Corral, mailbox: str = "agent:ada") -> list[str]:
    return [letter.body["state"] for letter in store.mail.list(mailbox=mailbox).items]


def test_decision_is_recorded_with_rationale_and_alternatives(store: Corral) -> None:
    decision = store.decisions.record(
        "Use msgspec",
        rationale="It is fast.",
        alternatives=["pydantic", "attrs"],
        category="dependency",
        author="agent:ada",
    )
    assert (decision.state, decision.category, decision.deadline_at) == (
        "recorded",
        "dependency",
        None,
    )
    assert decision.alternatives == ["pydantic", "attrs"]
    assert store.decisions.wait(decision.id).state == "recorded"
    assert store.decisions.list(proposed=True).items == []
    assert list_notices(store) == []


def test_proposed_decision_waits_for_confirmation(store: Corral) -> None:
    decision = propose(store)
    assert decision.state == "proposed"
    with raises_without_change(store, NotYet):
        store.decisions.wait(decision.id, timeout_ms=1)
    waiter = Racer(lambda: store.decisions.wait(decision.id, timeout_ms=20_000))
    store.decisions.confirm(decision.id, by=ANN, reason="go")
    ended = waiter.result()
    assert (ended.state, ended.decided_by, ended.reason) == ("confirmed", ANN, "go")
    assert list_notices(store) == ["confirmed"]
    store.decisions.acknowledge(decision.id)
    assert list_notices(store) == []
    events = ["decision.record", "decision.propose", "decision.confirm"]
    assert list_events(store, decision.id) == events


def test_agent_confirms_only_decisions_it_is_named_for(store: Corral) -> None:
    open_decision = propose(store)
    addressed = propose(store, answerers=["agent:lead"])
    for decision, by in (
        (open_decision, "agent:ada"),
        (open_decision, "agent:ben"),
        (addressed, ANN),
    ):
        with raises_without_change(store, Refused):
            store.decisions.confirm(decision.id, by=by)
    assert list_notices(store, "agent:lead") == ["proposed"]
    assert store.decisions.confirm(addressed.id, by="agent:lead").state == "confirmed"
    assert list_notices(store, "agent:lead") == []


@pytest.mark.parametrize(
    ("deadline_outcome", "outcome"), [("reject", "rejected"), ("dismiss", "dismissed")]
)
def test_deadline_ends_a_proposal_and_notifies_the_author(
    store: Corral, clock: ManualClock, deadline_outcome: str, outcome: str
) -> None:
    decision = propose(store, deadline_ms=HOUR, deadline_outcome=deadline_outcome)
    clock.advance(HOUR)
    with raises_without_change(store, Conflict) as caught:
        store.decisions.confirm(decision.id, by=ANN)
    assert f"its deadline has passed, so it is {outcome}" in caught.value.message
    ended = store.decisions.get(decision.id)
    assert (ended.state, ended.decided_by) == (outcome, None)
    assert list_notices(store) == [outcome]
    assert store.internal.decisions.expire_due() == []


def test_deadline_outcome_cannot_be_confirm(store: Corral) -> None:
    with raises_without_change(store, Invalid):
        propose(store, deadline_outcome="confirm")


def test_deadline_survives_a_restart(url: str, clock: ManualClock) -> None:
    with corral.open(url, clock=clock) as store:
        decision = propose(store, deadline_ms=HOUR)
    clock.advance(59 * MINUTE)
    with corral.open(url, clock=clock) as store:
        assert [
            decision_listed.id for decision_listed in store.decisions.list(proposed=True).items
        ] == [decision.id]
        clock.advance(MINUTE)
        assert store.decisions.list(proposed=True).items == []
        assert store.decisions.get(decision.id).state == "rejected"


def test_second_verdict_conflicts_and_same_verdict_is_idempotent(
    store: Corral,
) -> None:
    decision = propose(store)
    store.decisions.reject(decision.id, by=ANN)
    assert store.decisions.reject(decision.id, by=ANN).state == "rejected"
    with raises_without_change(store, Conflict) as caught:
        store.decisions.confirm(decision.id, by="user:ben")
    assert caught.value.details["reason"] == "too_late"
    assert (caught.value.details["state"], caught.value.details["decided_by"]) == ("rejected", ANN)


def test_review_many_is_atomic(store: Corral) -> None:
    ids = [propose(store).id for _ in range(3)]
    store.decisions.reject(ids[2], by="user:ben")
    with raises_without_change(store, Conflict):
        store.decisions.review_many(ids, "confirm", by=ANN)
    reviewed = store.decisions.review_many(ids[:2], "confirm", by=ANN)
    assert [decision.state for decision in reviewed] == ["confirmed", "confirmed"]
    for arguments in ((ids[:1], "unknown"), ([], "confirm")):
        with raises_without_change(store, Invalid):
            store.decisions.review_many(*arguments, by=ANN)


def test_recorded_decision_can_be_reviewed_and_rejection_is_sent(store: Corral) -> None:
    confirmed = store.decisions.record("x", author="agent:ada")
    rejected = store.decisions.record("y", author="agent:ada")
    store.decisions.confirm(confirmed.id, by=ANN)
    store.decisions.reject(rejected.id, by=ANN, reason="no")
    assert list_notices(store) == ["rejected"]


def test_record_is_idempotent_by_author_and_key(store: Corral) -> None:
    decision = propose(store, key="k")
    assert propose(store, key="k") == decision


def test_proposed_decisions_per_author_are_limited(store: Corral) -> None:
    store.settings.set("decisions.max_proposed", 1)
    propose(store)
    with raises_without_change(store, Refused):
        propose(store)


@each_case(
    "fields",
    [
        {"category": "A b"},
        {"alternatives": "x"},
        {"alternatives": ["x"] * 21},
        {"answerers": ["unknown"]},
        {"deadline_ms": 1},
        {"author": "x"},
        {"rationale": "a\0b"},
    ],
)
def test_invalid_decisions_are_rejected(store: Corral, fields: dict[str, object]) -> None:
    with raises_without_change(store, Invalid):
        propose(store, **fields)


def test_decisions_are_listed_newest_first_in_pages(store: Corral, tmp_path: object) -> None:
    project = store.projects.register(str(tmp_path)).id
    ids = [propose(store, project=project if n % 2 else None).id for n in range(5)]
    assert [decision.id for decision in walk(store.decisions.list)] == ids[::-1]
    assert [decision.id for decision in walk(store.decisions.list, project=project)] == [
        ids[3],
        ids[1],
    ]
    store.projects.delete(project)
    proposed = walk(store.decisions.list, proposed=True)
    assert [decision.id for decision in proposed] == [ids[4], ids[2], ids[0]]


def test_retention_deletes_old_decisions_but_not_proposed_ones(
    store: Corral, clock: ManualClock
) -> None:
    store.decisions.record("old", author="agent:ada")
    store.settings.set("decisions.retention_ms", 30 * DAY)
    proposed = propose(store, deadline_ms=365 * DAY)
    clock.advance(31 * DAY)
    count = {result.table: result.rows for result in store.db.prune(dry_run=True)}["decisions"]
    assert count == {result.table: result.rows for result in store.db.prune()}["decisions"] == 1
    assert store.decisions.get(proposed.id).state == "proposed"
