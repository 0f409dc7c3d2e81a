"""What people give in the dashboard besides words: files in a talk, and secrets."""

import logging
import os
import re
import stat
from pathlib import Path

import pytest

from corral import config
from corral.domain.chat.model import list_files
from tests.support.sample_store import HOSTILE
from tests.support.store import contents
from tests.web.test_chat_pages import Desk, desk

__all__ = ["desk"]

SECRET = "hunter2-and-more"


def reading(desk: Desk) -> str:
    """A token that may only look."""
    return desk.store.tokens.create("looker", scope="read").value


# -- files ----------------------------------------------------------------------------------------


def test_a_file_that_is_sent_in_a_talk_is_kept_private_and_comes_back_as_it_was(desk: Desk) -> None:
    talk = desk.begin()
    data = bytes(range(256)) * 8
    page = {"id": talk, "text": "look at this", "after": ""}
    for _ in range(2):  # sent twice from one state of the page
        desk.act("chat/say", {"file": ("../../<b>plan</b>.pdf", data)}, **page)
    (said,) = desk.store.messages.list(place=talk).items
    (file,) = list_files(said)
    kept = Path(file["path"])
    assert kept.is_relative_to(config.home() / "channels")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert re.fullmatch(r"1-[\w.-]+", kept.name)
    assert "<b>plan" not in desk.text(f"/chat/{talk}")
    answer = desk.client.get(f"/messaging/messages/{said.id}/files/1")
    assert (answer.status_code, answer.content) == (200, data)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
    assert "/" not in answer.headers["content-disposition"].partition("''")[2]
    assert "sandbox" in answer.headers.get_list("content-security-policy")
    assert answer.headers["x-content-type-options"] == "nosniff"
    desk.store.chat.start_turns()
    assert str(kept) in (desk.runner.prompt(desk.runner.begin()) or ""), "the agent is told where"


def test_files_alone_are_said_and_nothing_at_all_is_not(desk: Desk) -> None:
    talk = desk.begin()
    desk.act("chat/say", {"file": ("a.txt", b"x")}, id=talk, text=" ", after="")
    desk.refused("chat/say", "is required", {"file": ("", b"")}, id=talk, text=" ", after="")
    (said,) = desk.store.messages.list(place=talk).items
    assert (said.state, said.text) == ("routed", "")


def test_a_file_that_is_too_large_is_said_not_to_be_taken(desk: Desk) -> None:
    talk = desk.begin()
    desk.store.settings.set("chat.max_file_bytes", 10)
    desk.act("chat/say", {"file": ("big", b"x" * 11)}, id=talk, text="see", after="")
    assert "not stored: it is larger than 10 bytes" in desk.shown(f"/chat/{talk}")
    (said,) = desk.store.messages.list(place=talk).items
    answer = desk.client.get(f"/messaging/messages/{said.id}/files/1")
    assert (answer.status_code, "was not stored" in answer.text) == (404, True)
    large = {"file": ("huge", b"x" * (11 << 20))}
    assert desk.post("chat/say", large, id=talk, text="see", after="").status_code == 413


@pytest.mark.parametrize("number", ["0", "2", "-1", "x", "²", "9" * 30])
def test_a_file_that_is_none_is_not_found(desk: Desk, number: str) -> None:
    talk = desk.begin()
    desk.act("chat/say", {"file": ("a.txt", b"x")}, id=talk, text="", after="")
    (said,) = desk.store.messages.list(place=talk).items
    assert desk.client.get(f"/messaging/messages/{said.id}/files/{number}").status_code == 404


def test_nothing_but_what_was_kept_is_ever_given_out(desk: Desk, tmp_path: Path) -> None:
    talk = desk.begin()
    desk.act("chat/say", {"file": ("a.txt", b"mine")}, id=talk, text="", after="")
    (said,) = desk.store.messages.list(place=talk).items
    kept = Path(list_files(said)[0]["path"])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("four")
    for broken in (lambda: os.symlink(elsewhere, kept), lambda: kept.write_text("more bytes")):
        kept.unlink()
        broken()
        answer = desk.client.get(f"/messaging/messages/{said.id}/files/1")
        assert 400 <= answer.status_code < 500
        assert "four" not in answer.text
    kept.unlink()
    answer = desk.client.get(f"/messaging/messages/{said.id}/files/1")
    assert (answer.status_code, "not on this machine" in answer.text) == (404, True)


def test_who_may_only_look_sends_no_file(desk: Desk) -> None:
    talk = desk.begin()
    with desk.served.client(reading(desk)) as reader:
        answer = reader.post("/do/chat/say", data={"id": talk}, files={"file": ("a", b"x")})
    assert answer.status_code == 403


# -- secrets --------------------------------------------------------------------------------------


def wanted(desk: Desk, name: str = "mail-token") -> tuple[str, str]:
    """An agent asks for a secret in a talk; the place and the question."""
    talk = desk.begin()
    desk.act("chat/say", id=talk, text="read my mails", after="")
    desk.store.chat.start_turns()
    run = desk.runner.begin()
    asked = desk.store.requests.ask(
        "ada",
        "secret",
        {"name": name, "reason": f"to read {HOSTILE}"},
        run=run.id,
        session=run.session_id,
    )
    desk.deliver()
    return talk, str(asked.question_id)


def test_a_secret_given_in_its_form_goes_to_the_store_of_secrets_and_nowhere_else(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    talk, question = wanted(desk)
    for path in (f"/chat/{talk}", "/inbox", f"/inbox/{question}"):
        text = desk.text(path)
        assert f'id="secret-{question}"' in text, path
        assert 'type="password"' in text
        assert HOSTILE not in text
    told = desk.act("secrets/give", question=question, value=f" {SECRET}\n")
    store = desk.store
    assert store.secrets.resolve("mail-token") == SECRET
    kept = config.home() / "secrets" / "mail-token"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    desk.deliver()
    assert store.questions.get(question).state == "withdrawn"
    (letter,) = [
        each.body
        for talk_ in store.chat.conversations(talk)
        for each in store.mail.list(mailbox=talk_.mailbox).items
        if isinstance(each.body, dict) and each.body.get("kind") == "request"
    ]
    assert letter["text"] == "The secret mail-token is available to new runs."
    pages = [desk.text(path) for path in (f"/chat/{talk}", "/inbox", "/events", "/settings")]
    for where in (told.text, str(contents(store)), caplog.text, *pages):
        assert SECRET not in where
    assert f'id="secret-{question}"' not in pages[0]
    desk.refused("secrets/give", "no longer open", question=question, value="other")
    assert store.secrets.resolve("mail-token") == SECRET


def test_a_form_for_a_secret_gives_what_was_asked_for_alone(desk: Desk) -> None:
    _, question = wanted(desk)
    store = desk.store
    plain = store.questions.ask("Which?", options=["a"], asker="agent:ada")
    forged = store.questions.ask("Give!", asker="agent:ada", key=f"request:{question}:secret")
    for other in (plain.id, forged.id):
        desk.refused("secrets/give", "does not request a secret", question=other, value=SECRET)
    desk.refused("secrets/give", "is required", question=question, value="  ")
    desk.refused("secrets/give", "qst_zzz", question="qst_zzz", value=SECRET)
    assert store.secrets.list().items == []
    with desk.served.client(reading(desk)) as reader:
        assert f'id="secret-{question}"' not in reader.get("/inbox").text
        fields = {"question": question, "value": SECRET}
        assert reader.post("/do/secrets/give", data=fields).status_code == 403


# -- what is decided ------------------------------------------------------------------------------


def test_whoever_decides_in_the_inbox_sees_the_whole_effect(desk: Desk) -> None:
    store = desk.store
    store.people.set("ann", "owner")
    store.people.set("bob", "owner")
    store.settings.set("chat.approvals", 2)
    order = f"Be kind.\n{HOSTILE}\u202e and then all else"
    asked = store.requests.ask("ada", "create_agent", {"name": "helper", "instructions": order})
    store.questions.answer(str(asked.question_id), "yes", by="user:ann")
    for path in ("/inbox", f"/inbox/{asked.question_id}", "/"):
        page = desk.shown(path)
        assert "Create the agent helper" in page, path
        assert "and then all else" in page
        assert "2 matching answers required: user:ann: yes" in page
        assert HOSTILE not in desk.text(path)
        assert "\u202e" not in desk.text(path)
