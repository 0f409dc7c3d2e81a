"""Following a CLI's transcript: repeated items are ignored, and missing usage is charged."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corral.adapters.providers.facts import TurnFact, UsageFact
from corral.adapters.transcripts.reader import TranscriptItem
from corral.supervisor.transcript import TranscriptFollower, TranscriptLocator, TranscriptUse


class FakeRecorder:
    """Collects the recorded turns and charges."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.charged: list[int] = []
        self.budget = SimpleNamespace(is_measured=False)
        self.is_behind = False

    def record(self, facts: list[Any], **place: Any) -> None:
        self.texts += [fact.content for fact in facts if isinstance(fact, TurnFact)]
        self.charged += [fact.input for fact in facts if isinstance(fact, UsageFact)]

    def finish(self) -> None:
        self.is_behind = False

    def flush(self) -> None: ...


def test_repeated_prompt_is_not_recorded() -> None:
    """The reader of opencode yields rows of the same millisecond twice."""
    items = [TranscriptItem(5, TurnFact("user", "do it"), 7, "prt_1")]
    place: Any = SimpleNamespace(
        started_at=0,
        refresh=lambda: None,
        list_files=lambda session: [(Path("record"), True)],
        read_items=lambda path, offset: items,
    )
    recorder: Any = FakeRecorder()
    follower = TranscriptFollower(
        place, recorder, use=TranscriptUse.ALL, session="ses_1", prompt="do it"
    )
    for _ in range(3):
        follower.next_poll = 0.0
        follower.poll(None)
    assert recorder.texts == []
    items.append(TranscriptItem(6, TurnFact("user", "do it"), 8, "prt_2"))
    follower.next_poll = 0.0
    follower.poll(None)
    assert recorder.texts == ["do it"], "the user sends the same prompt again"


def test_transcript_is_not_read_while_too_many_facts_are_pending() -> None:
    items = [TranscriptItem(5, TurnFact("assistant", "one"), 7, "prt_1")]
    place: Any = SimpleNamespace(
        started_at=0,
        refresh=lambda: None,
        close=lambda: None,
        list_files=lambda session: [(Path("record"), True)],
        read_items=lambda path, offset: items,
    )
    recorder: Any = FakeRecorder()
    follower = TranscriptFollower(
        place, recorder, use=TranscriptUse.ALL, session="ses_1", prompt=None
    )
    recorder.is_behind = True
    follower.poll(None)
    assert recorder.texts == []
    follower.close()
    assert recorder.texts == ["one"], "the rest is read at the end"


def test_repeated_item_is_not_activity() -> None:
    """An idle run is ended after a time without activity, so an old item must not count as new."""
    items = [TranscriptItem(5, TurnFact("assistant", "done"), 7, "prt_1")]
    place: Any = SimpleNamespace(
        started_at=0,
        refresh=lambda: None,
        list_files=lambda session: [(Path("record"), True)],
        read_items=lambda path, offset: [item for item in items if item.offset >= offset],
    )
    recorder: Any = FakeRecorder()
    follower = TranscriptFollower(
        place, recorder, use=TranscriptUse.ALL, session="ses_1", prompt=None
    )

    def poll() -> bool:
        follower.next_poll = 0.0
        return follower.poll(None)

    assert [poll(), poll(), poll()] == [True, False, False]
    items.append(TranscriptItem(6, TurnFact("assistant", "one more"), 7, "prt_2"))
    assert [poll(), poll()] == [True, False], "a new item of the same time"
    items[1] = TranscriptItem(6, TurnFact("assistant", "one more, changed"), 7, "prt_2")
    assert [poll(), poll()] == [True, False], "an item that changed at the same time"
    items.append(TranscriptItem(9, TurnFact("assistant", "later"), 9, "prt_3"))
    assert [poll(), poll()] == [True, False]
    assert recorder.texts == ["done", "one more", "one more, changed", "later"]


@pytest.mark.parametrize("counter", [None, "thread"])
def test_usage_that_the_stream_does_not_report_is_charged_at_the_end(counter: str | None) -> None:
    """The second prompt is cancelled, so that only the transcript reports its usage."""

    def make_item(offset: int, tokens: int) -> TranscriptItem:
        return TranscriptItem(
            offset,
            UsageFact("m", input=tokens, counter=counter, key=None if counter else str(offset)),
            offset,
        )

    items = [make_item(1_000, 100)]
    place: Any = SimpleNamespace(
        started_at=0,
        refresh=lambda: None,
        close=lambda: None,
        find_model=lambda session: None,
        list_files=lambda session: [(Path("record"), True)],
        read_items=lambda path, offset: [
            make_item for make_item in items if make_item.offset > offset
        ],
    )
    recorder: Any = FakeRecorder()
    follower = TranscriptFollower(
        place, recorder, use=TranscriptUse.ESTIMATE, session="ses_1", prompt=None
    )

    def poll_pending() -> list[int]:
        follower.next_poll = 0.0
        follower.poll(None)
        return [used.input for used in follower.pending]

    assert follower.find_model("ses_1") is None
    assert poll_pending() == [100]
    assert follower.find_model("ses_1") == "m", "a report of the stream without a model has a price"
    follower.settle(2_000)
    assert poll_pending() == [], "the stream's report charges it"
    items.append(make_item(1_900, 150 if counter else 50))
    assert poll_pending() == [], "the transcript is older than the report"
    items.append(make_item(3_000, 180 if counter else 30))
    assert poll_pending() == [30]
    follower.close()
    assert recorder.charged == [30]


def test_model_is_read_from_an_unread_transcript() -> None:
    """The stream can report usage without a model before the transcript is read."""
    items = [
        TranscriptItem(1, UsageFact("first", input=1), 1),
        TranscriptItem(2, TurnFact("assistant", "hi"), 2),
    ]
    reader: Any = SimpleNamespace(
        find_transcript=lambda folder, session: Path("record") if session == "ses_1" else None,
        iter_items=lambda path, offset: items,
    )
    place = TranscriptLocator(
        reader,
        Path("folder"),
        cwd="/",
        started_at=0,
        is_alone=lambda: True,
        is_taken=lambda session: False,
    )
    recorder: Any = FakeRecorder()
    follower = TranscriptFollower(
        place, recorder, use=TranscriptUse.ESTIMATE, session="ses_1", prompt=None
    )
    assert follower.find_model("ses_2") is None
    assert follower.find_model("ses_1") == "first"
