"""Alerts: matching, one letter per edge, validation, removal and retention."""

from typing import Any

import pytest

from corral.api import Corral
from corral.domain.alerts import ops
from corral.kernel.clock import DAY, ManualClock
from corral.kernel.errors import IllegalMove, Invalid, NotFound, Refused
from tests.support.grouped_cases import each_case
from tests.support.invariants import check_store
from tests.support.store import list_events, raises_without_change, unchanged, walk

COMMAND: dict[str, Any] = {"target_kind": "command", "target": "true"}


def test_occurrence_is_notified_once(store: Corral) -> None:
    alert = store.alerts.add(["crashed"], **COMMAND)
    for _ in range(3):
        (letter,) = store.internal.alerts.raise_alert(
            "crashed", "run_1", edge=1, data={"reason": "gone"}
        )
    assert letter.mailbox == alert.mailbox == f"hook:{alert.id}"
    assert letter.body["data"] == {"reason": "gone"}
    assert (letter.body["event"], letter.body["subject"]) == ("crashed", "run_1")
    store.internal.alerts.raise_alert("crashed", "run_1", edge=2)
    store.internal.alerts.raise_alert("crashed", "run_2", edge=1)
    assert len(store.mail.list(mailbox=alert.mailbox).items) == 3


def test_delivered_occurrence_is_not_notified_again(store: Corral) -> None:
    alert = store.alerts.add(["failed"], **COMMAND)
    store.internal.alerts.raise_alert("failed", "run_1", edge="x")
    (letter,) = store.mail.claim(alert.mailbox, owner="o")
    store.mail.ack(letter)
    store.internal.alerts.raise_alert("failed", "run_1", edge="x")
    assert store.mail.list(mailbox=alert.mailbox).items == []


def test_only_matching_alerts_are_notified(store: Corral) -> None:
    unfiltered = store.alerts.add(["crashed", "failed"], **COMMAND)
    of_project = store.alerts.add(["crashed"], **COMMAND, project="prj_1")
    agent = store.agents.create("ada", provider="claude").id
    of_agent = store.alerts.add(["crashed"], **COMMAND, agent="ada")
    removed = store.alerts.add(["crashed"], **COMMAND)
    store.alerts.remove(removed.id)

    def raise_and_list(kind: str, **context: Any) -> set[str]:
        return {
            letter.body["alert"]
            for letter in store.internal.alerts.raise_alert(
                kind, "run_1", edge=",".join(["edge", *context]), **context
            )
        }

    assert raise_and_list("crashed") == {unfiltered.id}
    assert raise_and_list("crashed", project_id="prj_1") == {unfiltered.id, of_project.id}
    assert raise_and_list("crashed", agent_id=agent) == {unfiltered.id, of_agent.id}
    assert raise_and_list("crashed", project_id="prj_1", agent_id=agent) == {
        unfiltered.id,
        of_project.id,
        of_agent.id,
    }
    assert raise_and_list("failed") == {unfiltered.id}
    assert raise_and_list("finished") == set()


@each_case("agent", ["ada", "agt_zzz"])
def test_alert_for_an_unknown_agent_is_rejected(store: Corral, agent: str) -> None:
    with raises_without_change(store, NotFound):
        store.alerts.add(["crashed"], **COMMAND, agent=agent)


def test_mailbox_target_gets_one_letter_per_alert(store: Corral) -> None:
    for kinds in (["budget"], ["budget", "stuck"]):
        store.alerts.add(kinds, target_kind="mailbox", target="agent:ada")
    for _ in range(2):
        store.internal.alerts.raise_alert("budget", "run_1", edge=1)
    assert len(store.mail.list(mailbox="agent:ada").items) == 2


def test_removing_an_alert_drops_its_pending_letters(store: Corral) -> None:
    alert = store.alerts.add(["stuck"], **COMMAND)
    letters = [store.internal.alerts.raise_alert("stuck", f"run_{n}", edge=1)[0] for n in range(3)]
    removed = store.alerts.remove(alert.id[:20])
    assert (removed.state, removed.ended_at) == ("removed", store.now())
    for letter in letters:
        dropped = store.mail.get(letter.id)
        assert (dropped.state, dropped.last_error) == ("refused", f"{alert.id} was removed")
    with raises_without_change(store, IllegalMove):
        store.alerts.remove(alert.id)
    with raises_without_change(store, Refused):
        store.alerts.test(alert.id)
    check_store(store)


def test_removed_alerts_are_listed_only_with_all(store: Corral) -> None:
    ids = [store.alerts.add(["crashed"], **COMMAND).id for _ in range(5)]
    store.alerts.remove(ids[1])
    assert [alert.id for alert in walk(store.alerts.list)] == [ids[0], *ids[2:]]
    assert [alert.id for alert in walk(store.alerts.list, all=True)] == ids


def test_removed_alerts_are_deleted_by_retention(store: Corral, clock: ManualClock) -> None:
    alert = store.alerts.add(["crashed"], **COMMAND)
    active = store.alerts.add(["crashed"], **COMMAND)
    store.alerts.remove(alert.id)
    clock.advance(91 * DAY)
    assert {result.table: result.rows for result in store.db.prune(dry_run=True)}["alerts"] == 1
    assert {result.table: result.rows for result in store.db.prune()}["alerts"] == 1
    assert [listed.id for listed in store.alerts.list(all=True).items] == [active.id]


INVALID_ALERTS: dict[str, dict[str, Any]] = {
    "no kind": {"kinds": []},
    "an unknown kind": {"kinds": ["crashed", "unknown"]},
    "an unknown target": {"target_kind": "unknown"},
    "a webhook without a URL": {"target_kind": "webhook", "target": ""},
    "a webhook to a file": {"target_kind": "webhook", "target": "file:///etc/passwd"},
    "a webhook without a host": {"target_kind": "webhook", "target": "http://"},
    "a webhook with a line end": {"target_kind": "webhook", "target": "http://a/\nX: y"},
    "a webhook with a space": {"target_kind": "webhook", "target": "http://a/b c"},
    "a webhook with an invalid address": {"target_kind": "webhook", "target": "http://[::1/x"},
    "an empty command": {"target": ""},
    "a blank command": {"target": "  "},
    "a command with an open quote": {"target": "echo 'x"},
    "a desktop with a target": {"target_kind": "desktop", "target": "x"},
    "an invalid mailbox": {"target_kind": "mailbox", "target": "ada"},
    "a signed command": {"secret": "key"},
    "a secret that has no name": {
        "target_kind": "webhook",
        "target": "http://a/",
        "secret": "no name",
    },
}


@each_case("case", INVALID_ALERTS)
def test_invalid_alert_is_rejected(store: Corral, case: str) -> None:
    arguments = {"kinds": ["crashed"], **COMMAND} | INVALID_ALERTS[case]
    with raises_without_change(store, Invalid):
        store.alerts.add(**arguments)


def test_password_in_a_url_is_rejected_and_not_repeated(store: Corral) -> None:
    with raises_without_change(store, Invalid) as caught:
        store.alerts.add(
            ["failed"], target_kind="webhook", target="https://me:hunter2@example.org/"
        )
    assert "hunter2" not in caught.value.message + str(caught.value.details)


def test_signature_needs_an_existing_secret(store: Corral) -> None:
    with raises_without_change(store, NotFound):
        store.alerts.add(["failed"], target_kind="webhook", target="http://a/", secret="key")


def test_invalid_edge_is_rejected(store: Corral) -> None:
    store.alerts.add(["crashed"], **COMMAND)
    for changes in (
        {"kind": "unknown"},
        {"subject": ""},
        {"subject": "x" * 1_000},
        {"edge": ""},
        {"edge": "x" * 1_000},
        {"data": {"x": "y" * 100_000}},
        {"data": {"x": float("nan")}},
    ):
        arguments: dict[str, Any] = {"kind": "crashed", "subject": "run_1", "edge": 1} | changes
        with raises_without_change(store, Invalid):
            store.internal.alerts.raise_alert(**arguments)


def test_without_alerts_nothing_is_written(store: Corral) -> None:
    with unchanged(store):
        assert store.internal.alerts.raise_alert("crashed", "run_1", edge=1) == []


def test_number_of_alerts_is_limited(store: Corral, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "MAX_ALERTS", 2)
    for _ in range(2):
        store.alerts.add(["crashed"], **COMMAND)
    with raises_without_change(store, Refused):
        store.alerts.add(["crashed"], **COMMAND)
    assert list_events(store) == ["alert.add"] * 2
