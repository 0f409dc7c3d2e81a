"""nanoclaw: a session's messages as the turns of a conversation, readable and searchable.

Incoming messages become user turns, outgoing ones assistant turns, and requests between the agent
and its host system turns. The two files of a session are merged by time at the end.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from corral.importers.mappings import target_rows
from corral.importers.mappings.types import TableMapping, TargetRow
from corral.importers.source.row import SourceRow, shorten_to_bytes

MAX_CONTENT = 4 * 1024 * 1024
_TEXTS = ("title", "text", "prompt", "question", "fallbackText")


def _parse_content(row: SourceRow) -> Any:
    """Return the content of a message: decoded JSON, or the text itself."""
    text = row.peek_clean_text("content")
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text


def _find_session(row: SourceRow) -> str | None:
    return row.find_id("sessions", row.owner_key)


def convert_incoming_turn(row: SourceRow) -> Iterable[TargetRow]:
    role = "system" if row.peek_text("kind") == "system" else "user"
    return _build_turn(row, role, "attachments", "inbox")


def convert_outgoing_turn(row: SourceRow) -> Iterable[TargetRow]:
    role = "system" if row.peek_text("kind") == "system" else "assistant"
    return _build_turn(row, role, "files", "outbox")


def _build_turn(row: SourceRow, role: str, listed: str, box: str) -> Iterable[TargetRow]:
    session = _find_session(row)
    if session is None:
        return
    content = _parse_content(row)
    message = content if isinstance(content, dict) else {}
    files = [_copy_file(row, session, entry, box) for entry in _as_list(message.get(listed))]
    for file in files:
        if file.get("reason"):
            row.problems.append(
                f"a file of {listed} is not copied: {_strip_file_name(file['reason'])}"
            )
    lines = [_render_text(content), *(f"[file: {file['name']}]" for file in files)]
    meta = {
        "source": "nanoclaw",
        "message": row.key,
        "kind": row.peek_text("kind"),
        "sender": _find_sender(message),
        "files": files,
    }
    yield target_rows.build_turn(
        session,
        role,
        shorten_to_bytes("\n".join(line for line in lines if line), MAX_CONTENT),
        row.peek_timestamp("timestamp"),
        meta=target_rows.to_json_text({name: value for name, value in meta.items() if value}),
    )


def _render_text(content: Any) -> str:
    """Return the readable text of a message; its JSON if it has no text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, dict):
        return target_rows.to_json_text(content)
    texts = [str(content[name]) for name in _TEXTS if isinstance(content.get(name), str)]
    texts += [f"- {option}" for option in _list_options(content)]
    if content.get("operation") or content.get("action") or not "".join(texts):
        rest = {name: value for name, value in content.items() if name not in ("text",)}
        return (
            "\n".join([*texts[:1], target_rows.to_json_text(rest)])
            if texts
            else target_rows.to_json_text(content)
        )
    return "\n".join(text for text in texts if text)


def _find_question_text(content: Any) -> str | None:
    """Return the text of a question card."""
    if not isinstance(content, dict):
        return None
    parts = [content.get("title"), content.get("question")]
    texts = [part for part in parts if isinstance(part, str) and part]
    return "\n".join(texts) or None


def _list_options(content: Any) -> list[str]:
    """Return the labels of a question card's options, each once."""
    given = _as_list(content.get("options")) if isinstance(content, dict) else []
    labels = [
        option.get("label") or option.get("value") if isinstance(option, dict) else option
        for option in given
    ]
    return [*dict.fromkeys(label for label in labels if isinstance(label, str) and label)]


def _find_sender(message: dict[str, Any]) -> str | None:
    author = message.get("author")
    named = author if isinstance(author, dict) else {}
    for value in (message.get("sender"), named.get("fullName"), named.get("userName")):
        if isinstance(value, str) and value:
            return value
    return None


def _copy_file(row: SourceRow, session: str, given: Any, box: str) -> dict[str, Any]:
    """Copy an attached file from the session's folder, where it is stored by message id."""
    entry = given if isinstance(given, dict) else {"name": given}
    named = entry.get("localPath") or entry.get("path")
    name = entry.get("name") or entry.get("filename") or named
    if not isinstance(name, str) or not name:
        return {"name": "file", "path": None, "reason": "it has no name"}
    path = named if isinstance(named, str) else f"{box}/{row.peek_text('id')}/{name}"
    copied = row.copy_file(path, session)
    return copied | {"name": name, "type": copied.get("type") or entry.get("mimeType")}


def _strip_file_name(reason: str) -> str:
    """Return a reason without the file name, so that equal reasons are counted together."""
    return reason.rpartition("' ")[2]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def convert_question_text(row: SourceRow) -> Iterable[TargetRow]:
    """Set the text and the options of a pending question from its card."""
    content = _parse_content(row)
    text = _find_question_text(content)
    question = row.find_id("pending_questions.message_out_id", row.peek_text("id"))
    if question is None and isinstance(content, dict):
        question = row.find_id("pending_questions", str(content.get("questionId") or ""))
    if question is None or text is None:
        return
    options = target_rows.to_json_text(_list_options(content))
    yield TargetRow("question_texts", {"id": question, "text": text, "options": options})


def link_question(row: SourceRow) -> Iterable[tuple[str, str]]:
    content = _parse_content(row)
    yield "pending_questions.message_out_id", row.peek_text("id")
    if isinstance(content, dict) and content.get("questionId"):
        yield "pending_questions", str(content["questionId"])


def _link_session(row: SourceRow) -> Iterable[tuple[str, str]]:
    yield "sessions", row.owner_key


INCOMING_TURNS = TableMapping(
    "messages_in",
    ("id",),
    {"kind": "turns.role", "content": "turns.content", "timestamp": "turns.at"},
    convert_incoming_turn,
    links=_link_session,
    alias="messages_in.turn",
)
OUTGOING_TURNS = TableMapping(
    "messages_out",
    ("id",),
    {"kind": "turns.role", "content": "turns.content", "timestamp": "turns.at"},
    convert_outgoing_turn,
    links=_link_session,
    alias="messages_out.turn",
)
QUESTION_TEXTS = TableMapping(
    "messages_out",
    ("id",),
    {"content": "questions.text, questions.options"},
    convert_question_text,
    links=link_question,
    alias="messages_out.question",
)
