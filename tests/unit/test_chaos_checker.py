"""The checker of `python -m tests.torture --chaos`: it finds every kind of violation."""

from collections.abc import Callable

from corral.db.stateful_table import StatefulTable
from corral.services.store.declarations import find_declarations
from tests.support.grouped_cases import each_case
from tests.torture.chaos import faults
from tests.torture.chaos.checker import judge
from tests.torture.chaos.journal import AttemptRecord, History, JournalEntry, StoreEvent

MOVES = {
    table.transitions.kind: table.transitions for table in find_declarations(StatefulTable).values()
}


def make_events(kind: str, subject: str, *verbs: str, **data: object) -> list[StoreEvent]:
    return [StoreEvent(kind, verb, subject, data or None) for verb in verbs]


def valid_history() -> History:
    """Return a short valid history."""
    exit_data = {"exit_code": 0, "signal": None}
    events = [
        *make_events("letter", "let_1", "put"),
        *make_events("letter", "let_2", "put"),
        *make_events("letter", "let_1", "fail", "ack"),
        *make_events("letter", "let_2", "begin_delivery", "ack"),
        *make_events("schedule", "sch_1", "create"),
        *make_events("letter", "let_3", "put"),
        *make_events("schedule", "sch_1", "finish", scheduled_times=[5], letters=["let_3"]),
        *make_events("schedule", "sch_2", "create"),
        *make_events("letter", "let_4", "put"),
        *make_events("letter", "let_5", "put"),
        *make_events("schedule", "sch_2", "fire", scheduled_times=[10], letters=["let_4"]),
        *make_events("schedule", "sch_2", "fire", scheduled_times=[15], letters=["let_5"]),
        *(StoreEvent("letter", "ack", f"let_{n}") for n in (3, 4, 5)),
        *make_events("task", "tsk_1", "declare", "promote"),
        *make_events("task", "tsk_1", "claim", fence=1),
        *make_events("task", "tsk_1", "release", "promote"),
        *make_events("task", "tsk_1", "claim", fence=2),
        *make_events("lock", "lck_1", "acquire", path="a", owner="agent:w0"),
        *make_events("lock", "lck_1", "release", path="a"),
        *make_events("lock", "lck_2", "acquire", path="a", owner="agent:w1"),
        *make_events("run", "run_1", "queue"),
        *make_events("run", "run_1", "start", pid=7),
        *make_events("run", "run_1", "launch"),
        *make_events("run", "run_1", "complete", **exit_data),
    ]
    journal = [
        JournalEntry("put", "let_1", "w0", 1, 2, mailbox="agent:a", key="k1"),
        JournalEntry("put", "let_2", "w0", 3, 4, mailbox="agent:a", key="k2"),
        JournalEntry("claim", "let_1", "w0", 5, 6, fence=1),
        JournalEntry("claim", "let_1", "w1", 7, 8, fence=2),
        JournalEntry("ack", "let_1", "w1", 9, 10, fence=2),
        JournalEntry("claim", "let_2", "w0", 11, 12, fence=1),
        JournalEntry("act in doubt", "let_2", "w0", 13, 13),
        JournalEntry("ack", "let_2", "w0", 14, 15, fence=1),
        JournalEntry("timer", "sch_1", "w0", 1, 2),
        JournalEntry("acquire", "lock:a", "w0", 1, 2, fence=1),
        JournalEntry("acquire", "lock:a", "w1", 3, 4, fence=2),
        JournalEntry("run", "run_1", "w0", 1, 2, key="pipe"),
    ]
    attempts = [AttemptRecord("run_1", 7, wrote=2, end="exit0", shown=[1, 2])]
    messages = [("hall", 1), ("hall", 2)]
    seen = [("run_1", 1), ("run_1", 2)]
    return History(
        MOVES,
        events,
        journal,
        attempts,
        seen=seen,
        said=[*messages],
        heard=[1, 2],
        shown=[*messages],
    )


def test_valid_history_has_no_findings() -> None:
    assert judge(valid_history()) == []


def remove_event(history: History, kind: str, verb: str, subject: str) -> None:
    history.events = [
        event
        for event in history.events
        if (event.kind, event.verb, event.subject) != (kind, verb, subject)
    ]


def change_event(history: History, kind: str, verb: str, **data: object) -> None:
    event = next(item for item in history.events if (item.kind, item.verb) == (kind, verb))
    event.data = (event.data or {}) | data


def move_event_forward(history: History, verb: str, subject: str) -> None:
    event = next(item for item in history.events if (item.verb, item.subject) == (verb, subject))
    history.events.remove(event)
    history.events.insert(2, event)


VIOLATIONS: dict[str, tuple[str, Callable[[History], object]]] = {
    "lost letter": (
        "let_1 was accepted, and the record does not know it",
        lambda h: [remove_event(h, "letter", verb, "let_1") for verb in ("put", "fail", "ack")],
    ),
    "letter without an end": (
        "let_3 ended 0 times",
        lambda h: remove_event(h, "letter", "ack", "let_3"),
    ),
    "letter that ended twice": (
        "let_3 ended 2 times",
        lambda h: h.events.extend(make_events("letter", "let_3", "ack")),
    ),
    "two letters with one key": (
        "the key k1 made two letters",
        lambda h: h.notes.append(
            JournalEntry("put", "let_2", "w0", 1, 2, mailbox="agent:a", key="k1")
        ),
    ),
    "letters out of order": (
        "agent:a: let_2 ended before let_1",
        lambda h: move_event_forward(h, "ack", "let_2"),
    ),
    "side effect executed twice": (
        "let_2 was acted on 2 times",
        lambda h: h.notes.append(JournalEntry("act in doubt", "let_2", "w1", 16, 16)),
    ),
    "decreasing fence": (
        "the fence of run_1 went from 2 back to 1",
        lambda h: h.seen.append(("run_1", 1)),
    ),
    "claim with a stale fence": (
        "tsk_1 was claimed with fence 2 again",
        lambda h: change_event(h, "task", "claim", fence=2),
    ),
    "accepted write of a stale owner": (
        "let_1: ack of w0 with fence 1 was accepted after fence 2",
        lambda h: h.notes.append(JournalEntry("ack", "let_1", "w0", 9, 10, fence=1)),
    ),
    "one fence for two owners": (
        "let_1 was given to two owners with fence 2",
        lambda h: h.notes.append(JournalEntry("claim", "let_1", "w3", 7, 8, fence=2)),
    ),
    "lock held after its release": (
        "lock:a: renew of w0 with fence 1 was accepted after fence 2",
        lambda h: h.notes.append(JournalEntry("renew", "lock:a", "w0", 5, 6, fence=1)),
    ),
    "path with two lock holders": (
        "a was given to lck_2 while lck_1 held it",
        lambda h: remove_event(h, "lock", "release", "lck_1"),
    ),
    "illegal transition": (
        "let_1: fail from done",
        lambda h: h.events.extend(make_events("letter", "let_1", "fail")),
    ),
    "transition of an unknown record": (
        "let_9: ack from nothing",
        lambda h: h.events.extend(make_events("letter", "let_9", "ack")),
    ),
    "record created twice": (
        "run_1 was created twice",
        lambda h: h.events.extend(make_events("run", "run_1", "queue")),
    ),
    "timer that never fired": (
        "sch_1 put 0 letters",
        lambda h: remove_event(h, "schedule", "finish", "sch_1"),
    ),
    "timer that fired twice": (
        "sch_1 put 2 letters",
        lambda h: change_event(h, "schedule", "finish", letters=["let_3", "let_4"]),
    ),
    "timer without its letter": (
        "a timer tells of let_9, which is not there",
        lambda h: change_event(h, "schedule", "finish", letters=["let_9"]),
    ),
    "scheduled time fired twice": (
        "sch_2: steps of [0] ms",
        lambda h: change_event(h, "schedule", "fire", scheduled_times=[15]),
    ),
    "missing scheduled time": (
        "sch_2: steps of [5, 10] ms",
        lambda h: h.events.extend(
            [
                *make_events("letter", "let_6", "put", "ack"),
                *make_events("schedule", "sch_2", "fire", scheduled_times=[25], letters=["let_6"]),
            ]
        ),
    ),
    "exit code that no attempt returned": (
        "run_1: exit code 3 was never returned; the agent intended exit0",
        lambda h: change_event(h, "run", "complete", exit_code=3),
    ),
    "signal that was not sent": (
        "run_1: signal 11 was not sent; the agent intended exit0",
        lambda h: change_event(h, "run", "complete", exit_code=None, signal=11),
    ),
    "completed run without an exit": (
        "run_1 is completed with None",
        lambda h: change_event(h, "run", "complete", exit_code=None),
    ),
    "run without an end": (
        "run_1 was accepted and is not over",
        lambda h: remove_event(h, "run", "complete", "run_1"),
    ),
    "run with two ends": (
        "run_1 ended twice",
        lambda h: h.events.append(StoreEvent("run", "crash", "run_1", {"exit_code": None})),
    ),
    "truncated output": (
        "run_1: 1 of 2 lines of attempt 7",
        lambda h: setattr(h.runs[0], "shown", [1]),
    ),
    "lost output": (
        "run_1: 0 of 2 lines of attempt 7",
        lambda h: setattr(h.runs[0], "shown", []),
    ),
    "duplicated output line": (
        "run_1: lines out of order, twice or missing in attempt 7",
        lambda h: setattr(h.runs[0], "shown", [1, 1, 2]),
    ),
    "unanswered message": (
        "#2 in hall was answered 0 times",
        lambda h: h.shown.pop(),
    ),
    "message answered twice": (
        "#2 in hall was answered 2 times",
        lambda h: h.shown.append(("hall", 2)),
    ),
    "answer in another place": (
        "#2 in yard was answered 1 times",
        lambda h: h.shown.append(("yard", 2)),
    ),
    "answers out of order": (
        "hall was answered out of order: [2, 1]",
        lambda h: h.shown.reverse(),
    ),
    "leftover process": (
        "left: 9 corral.supervisor",
        lambda h: h.left.append("9 corral.supervisor"),
    ),
    "signal to an unrelated process": (
        "bystander 9 got ['15']",
        lambda h: h.signalled.append("bystander 9 got ['15']"),
    ),
}


@each_case("violation", VIOLATIONS)
def test_every_kind_of_violation_is_found(violation: str) -> None:
    finding, corrupt = VIOLATIONS[violation]
    history = valid_history()
    corrupt(history)
    assert finding in judge(history)


def test_unconfirmed_letter_may_be_overtaken() -> None:
    history = valid_history()
    move_event_forward(history, "ack", "let_2")
    history.events.insert(2, StoreEvent("letter", "begin_delivery", "let_1"))
    assert not [finding for finding in judge(history) if "ended before" in finding]


def test_faults_are_determined_by_the_seed() -> None:
    kinds = set(faults.KINDS)
    assert faults.plan(7, 60, kinds) == faults.plan(7, 60, kinds)
    assert faults.plan(7, 60, kinds) != faults.plan(8, 60, kinds)
    assert {fault.kind for fault in faults.plan(7, 900, kinds)} == kinds
    assert {fault.kind for fault in faults.plan(7, 900, {"clock"})} == {"clock"}
