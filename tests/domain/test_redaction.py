"""No secret at rest: what looks like a key, and what is known to be one, is taken out of all words
on their way into the store, whoever writes them by whichever operation; and that is said.
"""

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

WORDS = f"the key is {KEY}, keep it"
KEPT = "the key is [redacted], keep it"


@pytest.fixture
def reopen(url: str) -> Iterator[Reopen]:
    """The store once more, as another process has it."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(corral.open(url))


@pytest.fixture
def taken(store: Corral) -> Callable[[Callable[[], Any]], tuple[Any, list[str]]]:
    """What an operation gave, and what it says that secrets were taken out of."""

    def work(call: Callable[[], Any]) -> tuple[Any, list[str]]:
        fields: list[str] = []
        with store.report_redactions(fields.extend):
            return call(), fields

    return work


def test_secret_in_a_letter_is_redacted_and_the_writer_notified(store: Corral, taken: Any) -> None:
    letter, fields = taken(lambda: store.mail.put("agent:ben", {"deep": [WORDS, 7]}, key="once"))
    assert fields == ["letters.body"]
    assert store.mail.get(letter.id).body == {"deep": [KEPT, 7]} == letter.body
    told = [event for event in store.events.newest().items if event.kind == "secret"]
    assert [(event.verb, event.subject, event.data) for event in told] == [
        ("redact", "letters", {"fields": ["body"]})
    ]


def test_secret_in_an_answer_is_redacted_and_reported(store: Corral, taken: Any) -> None:
    asked = store.questions.ask("Which one?", options=[WORDS, "none"], free_text=True)
    answered, fields = taken(lambda: store.questions.answer(asked.id, f"this: {KEY}"))
    assert (answered.answer, fields) == ("this: [redacted]", ["questions.answer"])
    assert taken(lambda: store.questions.answer(asked.id, f"this: {KEY}")) == (answered, [])
    voted = store.questions.ask("Which?", answerers=["user:ann", "user:ben"], required_votes=2)
    vote = partial(store.questions.answer, voted.id, f"this: {KEY}", by="user:ann")
    seen, fields = taken(vote)
    assert (seen.votes[0].answer, fields) == ("this: [redacted]", ["questions.votes"])
    assert taken(vote) == (seen, []), "the same again is fine"
    agreed = store.questions.answer(voted.id, f"this: {KEY}", by="user:ben")
    assert (agreed.state, agreed.answer) == ("answered", "this: [redacted]")
    chosen = store.questions.ask("Which one?", options=[WORDS, "none"])
    _, fields = taken(lambda: store.questions.answer(chosen.id, WORDS))
    assert fields == [], "the option is kept, and was told when it was asked"


def test_redacted_letter_is_deduplicated_by_its_key(store: Corral) -> None:
    first = store.mail.put("agent:ben", WORDS, key="once")
    assert store.mail.put("agent:ben", WORDS, key="once").id == first.id


@each_case("depth", [90, 700, 5_000])
def test_secret_in_deeply_nested_json_is_redacted(store: Corral, depth: int) -> None:
    """Whoever writes it: a message in a chat must not be what its channel cannot get past."""
    turn = store.sessions.append(
        store.sessions.open(), "user", "[" * depth + f'"{KEY}"' + "]" * depth
    )
    assert turn.content is not None
    assert turn.content.strip("[]").strip('"') == "[redacted]"


def test_text_without_a_secret_reports_nothing(store: Corral, taken: Any) -> None:
    _, fields = taken(lambda: store.mail.put("agent:ben", "ask-me about risk-free gh_p things"))
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
    """They would be others without a part of them; what is in them is their writer's to answer."""
    place = tmp_path / "sk-learn_and_a_long_name_of_its_own"
    place.mkdir()
    assert store.projects.register(place).dir == str(place)
    made = store.agents.create("ada", command=f"curl -H 'Authorization: Bearer {KEY}' x")
    assert KEY in str(store.agents.get(made.id).command)


def test_resolved_secret_is_redacted_by_its_value(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIN", "20405060")
    store.mail.put("agent:ben", {"text": "20405060"})
    store.secrets.set("pin", "env:PIN")
    assert store.secrets.resolve("pin") == "20405060"
    letter = store.mail.put("agent:ben", {"text": "it is 20405060!", "number": 20405060})
    # A number is none, and JSON stays JSON.
    assert store.mail.get(letter.id).body == {"text": "it is [redacted]!", "number": 20405060}


def test_stored_secret_is_redacted_in_every_process(store: Corral, reopen: Reopen) -> None:
    store.secrets.save_value("door", 'open "sesame" 1', where="file")
    other = reopen()
    letter = other.mail.put("agent:ben", {"text": 'say open "sesame" 1'})
    assert other.mail.get(letter.id).body == {"text": "say [redacted]"}


def test_secrets_given_to_a_run_are_redacted_in_its_processes(
    reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASS", "hunter2-and-more")
    monkeypatch.setenv("CORRAL_SECRETS", "GONE,PASS")
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
        {"key": "one", "title": WORDS, "description": WORDS, "files": ["sk-learn_and_a_long_name"]},
        {"key": "two", "title": "plain"},
    ]
    store.tasks.declare(project.id, tasks)
    one, two = (store.tasks.get(key, project=project.id) for key in ("one", "two"))
    assert (one.title, one.description, two.title) == (KEPT, KEPT, "plain")
    assert one.files == ["sk-learn_and_a_long_name"]
    with pytest.raises(Invalid, check=because("looks_like_a_secret", field="key")):
        store.tasks.declare(project.id, [{"key": f"x.{KEY}", "title": "x"}])


def test_search_for_a_secret_pattern_reports_nothing(store: Corral) -> None:
    assert store.search.find(KEY).items == []
    assert not store.events.newest().items


def test_pattern_redaction_cannot_be_disabled_remotely() -> None:
    from corral.api.remote import RemoteCorral

    with pytest.raises(Refused):
        RemoteCorral.redact_known_values_only(object.__new__(RemoteCorral))
