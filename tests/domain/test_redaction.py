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


def test_a_key_in_a_letter_is_taken_out_and_whoever_wrote_it_is_told(
    store: Corral, taken: Any
) -> None:
    letter, fields = taken(lambda: store.mail.put("agent:ben", {"deep": [WORDS, 7]}, key="once"))
    assert fields == ["letters.body"]
    assert store.mail.get(letter.id).body == {"deep": [KEPT, 7]} == letter.body
    told = [event for event in store.events.newest().items if event.kind == "secret"]
    assert [(event.verb, event.subject, event.data) for event in told] == [
        ("redact", "letters", {"fields": ["body"]})
    ]


def test_whoever_answers_with_a_key_is_told(store: Corral, taken: Any) -> None:
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


def test_what_is_repeated_under_its_key_is_still_one_letter(store: Corral) -> None:
    first = store.mail.put("agent:ben", WORDS, key="once")
    assert store.mail.put("agent:ben", WORDS, key="once").id == first.id


@each_case("depth", [90, 700, 5_000])
def test_a_key_in_brackets_upon_brackets_is_taken_out(store: Corral, depth: int) -> None:
    """Whoever writes it: a message in a chat must not be what its channel cannot get past."""
    turn = store.sessions.append(
        store.sessions.open(), "user", "[" * depth + f'"{KEY}"' + "]" * depth
    )
    assert turn.content is not None
    assert turn.content.strip("[]").strip('"') == "[redacted]"


def test_nothing_is_said_where_nothing_was_taken_out(store: Corral, taken: Any) -> None:
    _, fields = taken(lambda: store.mail.put("agent:ben", "ask-me about risk-free gh_p things"))
    assert fields == []
    assert not [event for event in store.events.newest().items if event.kind == "secret"]


def test_where_none_can_be_taken_out_a_secret_is_refused_and_nothing_is_kept(
    store: Corral, tmp_path: Path
) -> None:
    with pytest.raises(Invalid, check=because("looks_like_a_secret", field="key")):
        store.mail.put("agent:ben", "x", key=KEY)
    with pytest.raises(Invalid, check=because("looks_like_a_secret", field="name")):
        store.agents.create(KEY, command="true")
    with pytest.raises(Invalid, check=because("looks_like_a_secret", field="env")):
        store.runs.start(command=["true"], env={"GREETING": KEY}, project=str(tmp_path))
    assert not store.events.newest().items


def test_a_command_and_a_path_stay_as_they_were_given(store: Corral, tmp_path: Path) -> None:
    """They would be others without a part of them; what is in them is their writer's to answer."""
    place = tmp_path / "sk-learn_and_a_long_name_of_its_own"
    place.mkdir()
    assert store.projects.register(place).dir == str(place)
    made = store.agents.create("ada", command=f"curl -H 'Authorization: Bearer {KEY}' x")
    assert KEY in str(store.agents.get(made.id).command)


def test_a_secret_that_was_read_is_known_by_its_value(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIN", "20405060")
    store.mail.put("agent:ben", {"text": "20405060"})
    store.secrets.set("pin", "env:PIN")
    assert store.secrets.resolve("pin") == "20405060"
    letter = store.mail.put("agent:ben", {"text": "it is 20405060!", "number": 20405060})
    # A number is none, and JSON stays JSON.
    assert store.mail.get(letter.id).body == {"text": "it is [redacted]!", "number": 20405060}


def test_a_secret_that_corral_keeps_in_a_file_is_known_to_every_process(
    store: Corral, reopen: Reopen
) -> None:
    store.secrets.save_value("door", 'open "sesame" 1', where="file")
    other = reopen()
    letter = other.mail.put("agent:ben", {"text": 'say open "sesame" 1'})
    assert other.mail.get(letter.id).body == {"text": "say [redacted]"}


def test_a_process_of_a_run_knows_what_the_run_was_given(
    reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASS", "hunter2-and-more")
    monkeypatch.setenv("CORRAL_SECRETS", "GONE,PASS")
    store = reopen()
    letter = store.mail.put("agent:ben", "hunter2-and-more")
    assert store.mail.get(letter.id).body == "[redacted]"


def test_a_person_who_knows_that_it_is_no_key_keeps_it(
    reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASS", "hunter2-and-more")
    monkeypatch.setenv("CORRAL_SECRETS", "PASS")
    store = reopen()
    store.redact_known_values_only()
    letter = store.mail.put("agent:ben", f"{KEY} hunter2-and-more")
    assert store.mail.get(letter.id).body == f"{KEY} [redacted]"


def test_rows_that_are_written_together_are_looked_at_too(store: Corral, tmp_path: Path) -> None:
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


def test_a_search_for_what_looks_like_a_key_is_only_a_search(store: Corral) -> None:
    assert store.search.find(KEY).items == []
    assert not store.events.newest().items


def test_only_where_the_store_is_words_are_kept_as_they_are() -> None:
    from corral.api.remote import RemoteCorral

    with pytest.raises(Refused):
        RemoteCorral.redact_known_values_only(object.__new__(RemoteCorral))
