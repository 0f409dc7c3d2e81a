"""Redaction: secrets are removed from all text before it is stored, and removals are reported."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.api import Corral
from corral.errors import Invalid, Refused
from tests.support.errors import because
from tests.support.fake_keys import KEY
from tests.support.grouped_cases import each_case

Reopen = Callable[[], Corral]

TEXT = f"the key is {KEY}."
REDACTED = "the key is [redacted]."


@pytest.fixture
def reopen(url: str) -> Iterator[Reopen]:
    """Return a function that opens the store again, as another process does."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(corral.open(url))


@pytest.fixture
def call_with_report(store: Corral) -> Callable[[Callable[[], Any]], tuple[Any, list[str]]]:
    """Return a function that calls an operation and returns its result and the redacted fields."""

    def call_and_report(call: Callable[[], Any]) -> tuple[Any, list[str]]:
        fields: list[str] = []
        with store.report_redactions(fields.extend):
            return call(), fields

    return call_and_report


def test_secret_in_a_letter_is_redacted_and_the_writer_notified(
    store: Corral, call_with_report: Any
) -> None:
    letter, fields = call_with_report(
        lambda: store.mail.put("agent:ben", {"deep": [TEXT, 7]}, key="once")
    )
    assert fields == ["letters.body"]
    assert store.mail.get(letter.id).body == {"deep": [REDACTED, 7]} == letter.body
    events = [event for event in store.events.newest().items if event.kind == "secret"]
    assert [(event.verb, event.subject, event.data) for event in events] == [
        ("redact", "letters", {"fields": ["body"]})
    ]


def test_secret_in_an_answer_is_redacted_and_reported(store: Corral, call_with_report: Any) -> None:
    question = store.questions.ask("Which one?", options=[TEXT, "none"], free_text=True)
    answered, fields = call_with_report(lambda: store.questions.answer(question.id, f"this: {KEY}"))
    assert (answered.answer, fields) == ("this: [redacted]", ["questions.answer"])
    assert call_with_report(lambda: store.questions.answer(question.id, f"this: {KEY}")) == (
        answered,
        [],
    )
    vote_question = store.questions.ask(
        "Which?", answerers=["user:ann", "user:ben"], required_votes=2
    )
    vote = partial(store.questions.answer, vote_question.id, f"this: {KEY}", by="user:ann")
    voted, fields = call_with_report(vote)
    assert (voted.votes[0].answer, fields) == ("this: [redacted]", ["questions.votes"])
    assert call_with_report(vote) == (voted, []), "a repeated vote is idempotent"
    agreed = store.questions.answer(vote_question.id, f"this: {KEY}", by="user:ben")
    assert (agreed.state, agreed.answer) == ("answered", "this: [redacted]")
    option_question = store.questions.ask("Which one?", options=[TEXT, "none"])
    _, fields = call_with_report(lambda: store.questions.answer(option_question.id, TEXT))
    assert fields == [], "options were redacted when the question was asked"


def test_redacted_letter_is_deduplicated_by_its_key(store: Corral) -> None:
    letter = store.mail.put("agent:ben", TEXT, key="once")
    assert store.mail.put("agent:ben", TEXT, key="once").id == letter.id


@each_case("depth", [90, 700, 5_000])
def test_secret_in_deeply_nested_json_is_redacted(store: Corral, depth: int) -> None:
    """Nested JSON must not fail, because a failing message would block its channel."""
    turn = store.sessions.append(
        store.sessions.open(), "user", "[" * depth + f'"{KEY}"' + "]" * depth
    )
    assert turn.content is not None
    assert turn.content.strip("[]").strip('"') == "[redacted]"


def test_text_without_a_secret_reports_nothing(store: Corral, call_with_report: Any) -> None:
    _, fields = call_with_report(
        lambda: store.mail.put("agent:ben", "ask-me about risk-free gh_p things")
    )
    assert fields == []
    assert not [event for event in store.events.newest().items if event.kind == "secret"]


def test_secret_in_a_field_without_redaction_is_rejected(store: Corral, tmp_path: Path) -> None:
    with pytest.raises(Invalid, check=because("looks_like_a_secret", field="key")):
        store.mail.put("agent:ben", "x", key=KEY)
    with pytest.raises(Invalid, check=because("looks_like_a_secret", field="name")):
        store.agents.create(KEY, command="true")
    with pytest.raises(Invalid, check=because("looks_like_a_secret", field="env")):
        store.runs.start(command=["true"], env={"GREETING": KEY}, project=str(tmp_path))
    assert not store.events.newest().items


def test_commands_and_paths_are_not_redacted(store: Corral, tmp_path: Path) -> None:
    """Redaction would change what a command or a path refers to."""
    directory = tmp_path / "sk-learn_and_a_long_name_of_its_own"
    directory.mkdir()
    assert store.projects.register(directory).dir == str(directory)
    agent = store.agents.create("ada", command=f"curl -H 'Authorization: Bearer {KEY}' x")
    assert KEY in str(store.agents.get(agent.id).command)


def test_resolved_secret_is_redacted_by_its_value(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIN", "20405060")
    store.mail.put("agent:ben", {"text": "20405060"})
    store.secrets.set("pin", "env:PIN")
    assert store.secrets.resolve("pin") == "20405060"
    letter = store.mail.put("agent:ben", {"text": "it is 20405060!", "number": 20405060})
    # Numbers are not redacted, so that JSON stays valid.
    assert store.mail.get(letter.id).body == {"text": "it is [redacted]!", "number": 20405060}


def test_stored_secret_is_redacted_in_every_process(store: Corral, reopen: Reopen) -> None:
    store.secrets.save_value("token", 'hunter2 "quoted" 1', where="file")
    other_store = reopen()
    letter = other_store.mail.put("agent:ben", {"text": 'it is hunter2 "quoted" 1'})
    assert other_store.mail.get(letter.id).body == {"text": "it is [redacted]"}


def test_secrets_given_to_a_run_are_redacted_in_its_processes(
    reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASS", "hunter2-and-more")
    monkeypatch.setenv("CORRAL_SECRETS", "MISSING,PASS")
    store = reopen()
    letter = store.mail.put("agent:ben", "hunter2-and-more")
    assert store.mail.get(letter.id).body == "[redacted]"


def test_pattern_redaction_can_be_disabled_but_known_values_stay(
    reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASS", "hunter2-and-more")
    monkeypatch.setenv("CORRAL_SECRETS", "PASS")
    store = reopen()
    store.redact_known_values_only()
    letter = store.mail.put("agent:ben", f"{KEY} hunter2-and-more")
    assert store.mail.get(letter.id).body == f"{KEY} [redacted]"


def test_bulk_inserted_rows_are_redacted(store: Corral, tmp_path: Path) -> None:
    project = store.projects.register(tmp_path)
    tasks = [
        {"key": "one", "title": TEXT, "description": TEXT, "files": ["sk-learn_and_a_long_name"]},
        {"key": "two", "title": "plain"},
    ]
    store.tasks.declare(project.id, tasks)
    first_task, second_task = (store.tasks.get(key, project=project.id) for key in ("one", "two"))
    assert (first_task.title, first_task.description, second_task.title) == (
        REDACTED,
        REDACTED,
        "plain",
    )
    assert first_task.files == ["sk-learn_and_a_long_name"]
    with pytest.raises(Invalid, check=because("looks_like_a_secret", field="key")):
        store.tasks.declare(project.id, [{"key": f"x.{KEY}", "title": "x"}])


def test_search_for_a_secret_pattern_reports_nothing(store: Corral) -> None:
    assert store.search.find(KEY).items == []
    assert not store.events.newest().items


def test_pattern_redaction_cannot_be_disabled_remotely() -> None:
    from corral.api.remote import RemoteCorral

    with pytest.raises(Refused):
        RemoteCorral.redact_known_values_only(object.__new__(RemoteCorral))
