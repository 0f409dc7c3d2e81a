"""Files and secrets in the chat forms of the dashboard."""

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
from tests.web.test_chat_pages import ChatPages, chat_pages

__all__ = ["chat_pages"]

SECRET = "hunter2-and-more"


def create_read_token(chat_pages: ChatPages) -> str:
    """Create a read-only token and return its value."""
    return chat_pages.store.tokens.create("reader", scope="read").value


# -- files ----------------------------------------------------------------------------------------


def test_uploaded_file_is_private_and_returned_unchanged(chat_pages: ChatPages) -> None:
    place_id = chat_pages.start_conversation()
    data = bytes(range(256)) * 8
    page = {"id": place_id, "text": "look at this", "after": ""}
    for _ in range(2):  # sent twice from one state of the page
        chat_pages.submit("chat/send", {"file": ("../../<b>plan</b>.pdf", data)}, **page)
    (message,) = chat_pages.store.messages.list(place=place_id).items
    (file,) = list_files(message)
    path = Path(file["path"])
    assert path.is_relative_to(config.home() / "channels")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert re.fullmatch(r"1-[\w.-]+", path.name)
    assert "<b>plan" not in chat_pages.html(f"/chat/{place_id}")
    answer = chat_pages.client.get(f"/messaging/messages/{message.id}/files/1")
    assert (answer.status_code, answer.content) == (200, data)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
    assert "/" not in answer.headers["content-disposition"].partition("''")[2]
    assert "sandbox" in answer.headers.get_list("content-security-policy")
    assert answer.headers["x-content-type-options"] == "nosniff"
    chat_pages.store.internal.chat.start_turns()
    assert str(path) in (chat_pages.runner.prompt(chat_pages.runner.begin()) or ""), (
        "the prompt contains the path"
    )


def test_files_alone_are_sent_and_an_empty_message_is_not(chat_pages: ChatPages) -> None:
    place_id = chat_pages.start_conversation()
    chat_pages.submit("chat/send", {"file": ("a.txt", b"x")}, id=place_id, text=" ", after="")
    chat_pages.submit_rejected(
        "chat/send", "invalid", "is required", {"file": ("", b"")}, id=place_id, text=" ", after=""
    )
    (message,) = chat_pages.store.messages.list(place=place_id).items
    assert (message.state, message.text) == ("routed", "")


def test_oversized_file_is_reported_as_not_stored(chat_pages: ChatPages) -> None:
    place_id = chat_pages.start_conversation()
    chat_pages.store.settings.set("chat.max_file_bytes", 10)
    chat_pages.submit("chat/send", {"file": ("big", b"x" * 11)}, id=place_id, text="see", after="")
    assert "not stored: it is larger than 10 bytes" in chat_pages.decoded_html(f"/chat/{place_id}")
    (message,) = chat_pages.store.messages.list(place=place_id).items
    answer = chat_pages.client.get(f"/messaging/messages/{message.id}/files/1")
    assert (answer.status_code, "was not stored" in answer.text) == (404, True)
    large = {"file": ("huge", b"x" * (11 << 20))}
    assert chat_pages.post("chat/send", large, id=place_id, text="see", after="").status_code == 413


@pytest.mark.parametrize("number", ["0", "2", "-1", "x", "²", "9" * 30])
def test_missing_file_is_not_found(chat_pages: ChatPages, number: str) -> None:
    place_id = chat_pages.start_conversation()
    chat_pages.submit("chat/send", {"file": ("a.txt", b"x")}, id=place_id, text="", after="")
    (message,) = chat_pages.store.messages.list(place=place_id).items
    assert (
        chat_pages.client.get(f"/messaging/messages/{message.id}/files/{number}").status_code == 404
    )


def test_only_stored_files_are_served(chat_pages: ChatPages, tmp_path: Path) -> None:
    place_id = chat_pages.start_conversation()
    chat_pages.submit("chat/send", {"file": ("a.txt", b"mine")}, id=place_id, text="", after="")
    (message,) = chat_pages.store.messages.list(place=place_id).items
    path = Path(list_files(message)[0]["path"])
    other_file = tmp_path / "elsewhere"
    other_file.write_text("four")
    for replace in (lambda: os.symlink(other_file, path), lambda: path.write_text("more bytes")):
        path.unlink()
        replace()
        answer = chat_pages.client.get(f"/messaging/messages/{message.id}/files/1")
        assert 400 <= answer.status_code < 500
        assert "four" not in answer.text
    path.unlink()
    answer = chat_pages.client.get(f"/messaging/messages/{message.id}/files/1")
    assert (answer.status_code, "not on this machine" in answer.text) == (404, True)


def test_read_only_token_uploads_no_file(chat_pages: ChatPages) -> None:
    place_id = chat_pages.start_conversation()
    with chat_pages.http_server.client(create_read_token(chat_pages)) as reader:
        answer = reader.post("/do/chat/send", data={"id": place_id}, files={"file": ("a", b"x")})
    assert answer.status_code == 403


# -- secrets --------------------------------------------------------------------------------------


def request_secret(chat_pages: ChatPages, name: str = "mail-token") -> tuple[str, str]:
    """Request a secret as an agent in a chat; return the place and the question."""
    place_id = chat_pages.start_conversation()
    chat_pages.submit("chat/send", id=place_id, text="read my mails", after="")
    chat_pages.store.internal.chat.start_turns()
    run = chat_pages.runner.begin()
    request = chat_pages.store.host_requests.ask(
        "ada",
        "secret",
        {"name": name, "reason": f"to read {HOSTILE}"},
        run=run.id,
        session=run.session_id,
    )
    chat_pages.deliver()
    return place_id, str(request.question_id)


def test_secret_of_a_form_goes_only_to_the_secret_store(
    chat_pages: ChatPages, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    place_id, question = request_secret(chat_pages)
    for path in (f"/chat/{place_id}", "/inbox", f"/inbox/{question}"):
        text = chat_pages.html(path)
        assert f'id="secret-{question}"' in text, path
        assert 'type="password"' in text
        assert HOSTILE not in text
    result = chat_pages.submit("secrets/give", question=question, value=f" {SECRET}\n")
    store = chat_pages.store
    assert store.secrets.resolve("mail-token") == SECRET
    secret_file = config.home() / "secrets" / "mail-token"
    assert stat.S_IMODE(secret_file.stat().st_mode) == 0o600
    chat_pages.deliver()
    assert store.questions.get(question).state == "withdrawn"
    (letter,) = [
        item.body
        for conversation in store.chat.conversations(place_id)
        for item in store.mail.list(mailbox=conversation.mailbox).items
        if isinstance(item.body, dict) and item.body.get("kind") == "host_request"
    ]
    assert letter["text"] == "The secret mail-token is available to new runs."
    pages = [
        chat_pages.html(path) for path in (f"/chat/{place_id}", "/inbox", "/events", "/settings")
    ]
    for output in (result.text, str(contents(store)), caplog.text, *pages):
        assert SECRET not in output
    assert f'id="secret-{question}"' not in pages[0]
    chat_pages.submit_rejected(
        "secrets/give", "conflict", "no longer open", question=question, value="other"
    )
    assert store.secrets.resolve("mail-token") == SECRET


def test_secret_form_accepts_only_the_requested_secret(chat_pages: ChatPages) -> None:
    _, question = request_secret(chat_pages)
    store = chat_pages.store
    plain_question = store.questions.ask("Which?", options=["a"], asker="agent:ada")
    forged = store.questions.ask("Give!", asker="agent:ada", key=f"request:{question}:secret")
    for other_id in (plain_question.id, forged.id):
        chat_pages.submit_rejected(
            "secrets/give", "invalid", "does not request a secret", question=other_id, value=SECRET
        )
    chat_pages.submit_rejected(
        "secrets/give", "invalid", "is required", question=question, value="  "
    )
    chat_pages.submit_rejected(
        "secrets/give", "not_found", "qst_zzz", question="qst_zzz", value=SECRET
    )
    assert store.secrets.list().items == []
    with chat_pages.http_server.client(create_read_token(chat_pages)) as reader:
        assert f'id="secret-{question}"' not in reader.get("/inbox").text
        fields = {"question": question, "value": SECRET}
        assert reader.post("/do/secrets/give", data=fields).status_code == 403


# -- decisions ------------------------------------------------------------------------------------


def test_inbox_shows_the_whole_effect_of_a_request(chat_pages: ChatPages) -> None:
    store = chat_pages.store
    store.people.set("ann", "owner")
    store.people.set("bob", "owner")
    store.settings.set("chat.approvals", 2)
    instructions = f"Be kind.\n{HOSTILE}\u202e and the last words"
    request = store.host_requests.ask(
        "ada", "create_agent", {"name": "helper", "instructions": instructions}
    )
    store.questions.answer(str(request.question_id), "yes", by="user:ann")
    for path in ("/inbox", f"/inbox/{request.question_id}", "/"):
        page = chat_pages.decoded_html(path)
        assert "Create the agent helper" in page, path
        assert "and the last words" in page
        assert "2 matching answers required: user:ann: yes" in page
        assert HOSTILE not in chat_pages.html(path)
        assert "\u202e" not in chat_pages.html(path)
