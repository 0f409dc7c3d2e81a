"""Following a record whose reader may yield one item again."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corral.adapters.providers.facts import TurnFact, UsageFact
from corral.adapters.transcripts.reader import TranscriptItem
from corral.supervisor.transcript import TranscriptFollower, TranscriptLocator, TranscriptUse


class Recorder:
    """Keeps what it is given, as the one of a run does."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.charged: list[int] = []
        self.budget = SimpleNamespace(is_measured=False)

    def record(self, facts: list[Any], **place: Any) -> None:
        self.taken += [fact.content for fact in facts if isinstance(fact, TurnFact)]
        self.charged += [fact.input for fact in facts if isinstance(fact, UsageFact)]

    def finish(self) -> None: ...

    def flush(self) -> None: ...


def test_repeated_prompt_is_not_recorded() -> None:
    """opencode tells the time of a row, and rows of the same millisecond are read twice."""
    items = [TranscriptItem(5, TurnFact("user", "do it"), 7, "prt_1")]
    place: Any = SimpleNamespace(
        started_at=0,
        refresh=lambda: None,
        files=lambda session: [(Path("record"), True)],
        read=lambda path, offset: items,
    )
    recorder: Any = Recorder()
    follower = TranscriptFollower(
        place, recorder, use=TranscriptUse.ALL, session="ses_1", prompt="do it"
    )
    for _ in range(3):
        follower.next_poll = 0.0
        follower.poll(None)
    assert recorder.taken == []
    items.append(TranscriptItem(6, TurnFact("user", "do it"), 8, "prt_2"))
    follower.next_poll = 0.0
    follower.poll(None)
    assert recorder.taken == ["do it"], "a person says the same again"


def test_repeated_item_is_not_activity() -> None:
    """An idle run is ended after a time without activity, so an old item must not count as new."""
    items = [TranscriptItem(5, TurnFact("assistant", "done"), 7, "prt_1")]
    place: Any = SimpleNamespace(
        started_at=0,
        refresh=lambda: None,
        files=lambda session: [(Path("record"), True)],
        read=lambda path, offset: [item for item in items if item.offset >= offset],
    )
    recorder: Any = Recorder()
    follower = TranscriptFollower(
        place, recorder, use=TranscriptUse.ALL, session="ses_1", prompt=None
    )

    def look() -> bool:
        follower.next_poll = 0.0
        return follower.poll(None)

    assert [look(), look(), look()] == [True, False, False]
    items.append(TranscriptItem(6, TurnFact("assistant", "one more"), 7, "prt_2"))
    assert [look(), look()] == [True, False], "a new item of the same time"
    items[1] = TranscriptItem(6, TurnFact("assistant", "one more, changed"), 7, "prt_2")
    assert [look(), look()] == [True, False], "an item that changed at the same time"
    items.append(TranscriptItem(9, TurnFact("assistant", "later"), 9, "prt_3"))
    assert [look(), look()] == [True, False]
    assert recorder.taken == ["done", "one more", "one more, changed", "later"]


@pytest.mark.parametrize("counter", [None, "thread"])
def test_usage_that_the_stream_does_not_report_is_charged_at_the_end(counter: str | None) -> None:
    """The stream reports the first prompt; the second is cancelled, and only in the record."""

    def item(at: int, tokens: int) -> TranscriptItem:
        return TranscriptItem(
            at, UsageFact("m", input=tokens, counter=counter, key=None if counter else str(at)), at
        )

    items = [item(1_000, 100)]
    place: Any = SimpleNamespace(
        started_at=0,
        refresh=lambda: None,
        close=lambda: None,
        model=lambda session: None,
        files=lambda session: [(Path("record"), True)],
        read=lambda path, offset: [item for item in items if item.offset > offset],
    )
    recorder: Any = Recorder()
    follower = TranscriptFollower(
        place, recorder, use=TranscriptUse.ESTIMATE, session="ses_1", prompt=None
    )

    def pending() -> list[int]:
        follower.next_poll = 0.0
        follower.poll(None)
        return [used.input for used in follower.pending]

    assert follower.model("ses_1") is None
    assert pending() == [100]
    assert follower.model("ses_1") == "m", "a report of the stream without a model has a price"
    follower.settle(2_000)
    assert pending() == [], "it is charged by the stream's report"
    items.append(item(1_900, 150 if counter else 50))
    assert pending() == [], "the record is behind the report"
    items.append(item(3_000, 180 if counter else 30))
    assert pending() == [30]
    follower.close()
    assert recorder.charged == [30]


def test_model_is_read_from_an_unread_transcript() -> None:
    """The stream can report usage without a model before the first look at the record."""
    items = [
        TranscriptItem(1, UsageFact("first", input=1), 1),
        TranscriptItem(2, TurnFact("assistant", "hi"), 2),
    ]
    reader: Any = SimpleNamespace(
        find=lambda folder, session: Path("record") if session == "ses_1" else None,
        read=lambda path, offset: items,
    )
    place = TranscriptLocator(
        reader,
        Path("folder"),
        cwd="/",
        started_at=0,
        is_alone=lambda: True,
        is_taken=lambda session: False,
    )
    recorder: Any = Recorder()
    follower = TranscriptFollower(
        place, recorder, use=TranscriptUse.ESTIMATE, session="ses_1", prompt=None
    )
    assert follower.model("ses_2") is None
    assert follower.model("ses_1") == "first"
