"""Fakes of the Telegram and Slack bot APIs, with limits, errors and lost responses.

A test sets the next faults and reads the messages that users see.
"""

from collections import defaultdict
from itertools import count
from typing import Any

from tests.support.chat_server_stub import Answer, ApiRequest

LATE = "late"  # the request was accepted, but the response was lost
DOWN = "down"  # the request was not accepted; server error
SLOW = "slow"  # rate limited: retry after this many seconds
RETRY_SECONDS = 7


class Telegram:
    """The Telegram API for one bot."""

    token = "1:right"

    def __init__(self) -> None:
        self.shown: dict[str, list[dict[str, Any]]] = defaultdict(list)
        """The visible messages of each chat, in order."""
        self.updates: list[dict[str, Any]] = []
        self.faults: list[str] = []
        self.full: set[str] = set()
        """Chats that are rate limited."""
        self.pressed: list[str] = []
        self.typing: list[str] = []
        self.files: dict[str, bytes] = {}
        self.twice = False
        """Whether confirmed updates are delivered again."""
        self._numbers = count(100)

    def words(self, chat: str) -> list[str]:
        return [item["text"] for item in self.shown[chat]]

    def __call__(self, request: ApiRequest) -> Answer:
        head, _, method = request.path.rpartition("/")
        if head.startswith("/file/"):
            name = request.path.removeprefix(f"/file/bot{self.token}/")
            return (200, self.files[name]) if name in self.files else (404, {"ok": False})
        if head != f"/bot{self.token}":
            return _error(401, "Unauthorized")
        body = request.body if isinstance(request.body, dict) else {}
        return getattr(self, f"_{method}", self._unknown)(body, request)

    def _unknown(self, body: dict[str, Any], request: ApiRequest) -> Answer:
        return _error(404, "Not Found: method not found")

    def _getMe(self, body: dict[str, Any], request: ApiRequest) -> Answer:
        return _ok({"id": 99, "is_bot": True, "username": "corral_bot"})

    def _getUpdates(self, body: dict[str, Any], request: ApiRequest) -> Answer:
        offset = body.get("offset", 0)
        if not self.twice:
            self.updates = [update for update in self.updates if update["update_id"] >= offset]
        return _ok(self.updates[: body.get("limit", 100)])

    def _getFile(self, body: dict[str, Any], request: ApiRequest) -> Answer:
        if body["file_id"] not in self.files:
            return _error(400, "Bad Request: invalid file_id")
        return _ok({"file_id": body["file_id"], "file_path": body["file_id"]})

    def _answerCallbackQuery(self, body: dict[str, Any], request: ApiRequest) -> Answer:
        self.pressed.append(body["callback_query_id"])
        return _ok(True)

    def _sendChatAction(self, body: dict[str, Any], request: ApiRequest) -> Answer:
        self.typing.append(str(body["chat_id"]))
        return _ok(True)

    def _sendMessage(self, body: dict[str, Any], request: ApiRequest) -> Answer:
        if reason := _too_long(str(body.get("text", ""))):
            return _error(400, reason)
        if reason := self._bad_buttons(body):
            return _error(400, reason)
        reply = body.get("reply_parameters", {})
        message_ids = {item["message_id"] for item in self.shown[str(body["chat_id"])]}
        is_missing = bool(reply) and reply["message_id"] not in message_ids
        if is_missing and not reply.get("allow_sending_without_reply"):
            return _error(400, "Bad Request: message to be replied not found")
        return self._show(str(body["chat_id"]), body)

    def _bad_buttons(self, body: dict[str, Any]) -> str | None:
        rows = body.get("reply_markup", {}).get("inline_keyboard", [])
        for button in (button for row in rows for button in row):
            if not button["text"] or not 1 <= len(button["callback_data"].encode()) <= 64:
                return "Bad Request: BUTTON_DATA_INVALID"
        return None

    def _sendDocument(self, body: dict[str, Any], request: ApiRequest) -> Answer:
        fields, files = multipart(request)
        name, data = files["document"]
        return self._show(fields["chat_id"], fields | {"text": f"[{name}]", "data": data})

    def _show(self, chat: str, body: dict[str, Any]) -> Answer:
        how = self.faults.pop(0) if self.faults else ""
        if how == DOWN:
            return _error(502, "Bad Gateway")
        if how == SLOW or chat in self.full:
            values = {"ok": False, "error_code": 429, "parameters": {"retry_after": RETRY_SECONDS}}
            return 429, values | {"description": f"Too Many Requests: retry after {RETRY_SECONDS}"}
        message = body | {"message_id": next(self._numbers)}
        self.shown[chat].append(message)
        values = {name: value for name, value in message.items() if name != "data"}
        return (0, None) if how == LATE else _ok(values)

    def _find(self, body: dict[str, Any]) -> dict[str, Any] | None:
        chat = self.shown[str(body["chat_id"])]
        return next((item for item in chat if item["message_id"] == body["message_id"]), None)

    def _editMessageText(self, body: dict[str, Any], request: ApiRequest) -> Answer:
        result = self._find(body)
        if result is None:
            return _error(400, "Bad Request: message to edit not found")
        if result["text"] == body["text"] and "reply_markup" not in result:
            return _error(
                400, "Bad Request: message is not modified: specified new message content"
            )
        result["text"] = body["text"]
        result.pop("reply_markup", None)
        return _ok(result)

    def _setMessageReaction(self, body: dict[str, Any], request: ApiRequest) -> Answer:
        (sign,) = body["reaction"]
        if sign["emoji"] not in "👍👎❤🔥🎉":
            return _error(400, "Bad Request: REACTION_INVALID")
        return _ok(True)


def _ok(result: Any) -> Answer:
    return 200, {"ok": True, "result": result}


def _error(code: int, reason: str) -> Answer:
    return code, {"ok": False, "error_code": code, "description": reason}


def _too_long(text: str) -> str | None:
    if not text.strip():
        return "Bad Request: message text is empty"
    if len(text.encode("utf-16-le")) // 2 > 4_096:
        return "Bad Request: message is too long"
    return None


class Slack:
    """The Slack API for one bot."""

    token = "xoxb-right"

    def __init__(self) -> None:
        self.url = ""
        """The URL of the server, once it runs."""
        self.shown: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.faults: list[str] = []
        self.full: set[str] = set()
        self.uploads: dict[str, dict[str, Any]] = {}
        self.page = 200
        """The largest page of a history, whatever the request's limit."""
        self._numbers = count(1)

    def words(self, channel: str) -> list[str]:
        return [item["text"] for item in self.shown[channel]]

    def says(self, channel: str, text: str, **more: Any) -> str:
        """Add a message of another user."""
        return self._add(channel, {"text": text, "user": "U1"} | more)

    def _add(self, channel: str, message: dict[str, Any]) -> str:
        ts = f"1800000{next(self._numbers):03}.000100"
        self.shown[channel].append(message | {"ts": ts})
        return ts

    def __call__(self, request: ApiRequest) -> Answer:
        method = request.path.rpartition("/")[2]
        if request.path.startswith("/upload/"):
            self.uploads[method]["data"] = request.raw
            return 200, b"OK - 5"
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return 200, {"ok": False, "error": "invalid_auth"}
        body = request.body if isinstance(request.body, dict) else {}
        return getattr(self, "_" + method.replace(".", "_"), self._unknown)(body)

    def _unknown(self, body: dict[str, Any]) -> Answer:
        return 200, {"ok": False, "error": "unknown_method"}

    def _auth_test(self, body: dict[str, Any]) -> Answer:
        return 200, {"ok": True, "user_id": "UBOT", "bot_id": "B1"}

    def _chat_postMessage(self, body: dict[str, Any]) -> Answer:
        channel = body["channel"]
        if not channel.startswith("C"):
            return 200, {"ok": False, "error": "channel_not_found"}
        for block in body.get("blocks", []):
            if block["type"] == "section" and len(block["text"]["text"]) > 3_000:
                return 200, {"ok": False, "error": "invalid_blocks"}
        return self._show(channel, body)

    def _show(self, channel: str, body: dict[str, Any]) -> Answer:
        how = self.faults.pop(0) if self.faults else ""
        if how == DOWN:
            return 503, b"service unavailable"
        if how == SLOW or channel in self.full:
            return 429, {"ok": False, "error": "ratelimited"}, {"Retry-After": str(RETRY_SECONDS)}
        ts = self._add(channel, body | {"user": "UBOT", "bot_id": "B1"})
        return (0, None) if how == LATE else (200, {"ok": True, "ts": ts, "channel": channel})

    def _find(self, channel: str, ts: str) -> dict[str, Any] | None:
        return next((item for item in self.shown[channel] if item["ts"] == ts), None)

    def _chat_update(self, body: dict[str, Any]) -> Answer:
        result = self._find(body["channel"], body["ts"])
        if result is None:
            return 200, {"ok": False, "error": "message_not_found"}
        result |= {"text": body["text"], "blocks": body.get("blocks", result.get("blocks"))}
        return 200, {"ok": True, "ts": body["ts"]}

    def _reactions_add(self, body: dict[str, Any]) -> Answer:
        result = self._find(body["channel"], body["timestamp"])
        if result is None:
            return 200, {"ok": False, "error": "message_not_found"}
        if body["name"] in result.setdefault("signs", []):
            return 200, {"ok": False, "error": "already_reacted"}
        result["signs"].append(body["name"])
        return 200, {"ok": True}

    def _conversations_history(self, body: dict[str, Any]) -> Answer:
        return self._listed(body, self.shown[body["channel"]])

    def _conversations_replies(self, body: dict[str, Any]) -> Answer:
        inside = [
            item for item in self.shown[body["channel"]] if item.get("thread_ts") == body["ts"]
        ]
        return self._listed(body, inside)

    def _listed(self, body: dict[str, Any], messages: list[dict[str, Any]]) -> Answer:
        """Return messages newest first, by page; metadata only on request."""
        start = int(body.get("cursor") or 0)
        newest = messages[::-1]
        limit = min(int(body.get("limit", 100)), self.page)
        page = newest[start : start + limit]
        if body.get("include_all_metadata") != "true":
            page = [
                {name: value for name, value in item.items() if name != "metadata"} for item in page
            ]
        more = start + limit < len(newest)
        values: dict[str, Any] = {"ok": True, "messages": page, "has_more": more}
        if more:
            values["response_metadata"] = {"next_cursor": str(start + limit)}
        return 200, values

    def _files_getUploadURLExternal(self, body: dict[str, Any]) -> Answer:
        id = f"F{next(self._numbers)}"
        self.uploads[id] = {"name": body["filename"], "length": int(body["length"])}
        return 200, {"ok": True, "upload_url": f"{self.url}/upload/{id}", "file_id": id}

    def _files_completeUploadExternal(self, body: dict[str, Any]) -> Answer:
        (item,) = body["files"]
        upload = self.uploads[item["id"]]
        if len(upload.get("data", b"")) != upload["length"]:
            return 200, {"ok": False, "error": "file_not_found"}
        message = {"text": "", "files": [{"id": item["id"], "title": item["title"]}]}
        if "thread_ts" in body:
            message["thread_ts"] = body["thread_ts"]
        return self._show(body["channel_id"], message)


def multipart(request: ApiRequest) -> tuple[dict[str, str], dict[str, tuple[str, bytes]]]:
    """Return the fields and files of a form."""
    from email.parser import BytesParser
    from email.policy import HTTP

    head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
    fields, files = {}, {}
    for part in BytesParser(policy=HTTP).parsebytes(head + request.raw).iter_parts():
        name = str(part.get_param("name", header="content-disposition"))
        data: bytes = part.get_payload(decode=True)
        if (file := part.get_filename()) is not None:
            files[name] = (file, data)
        else:
            fields[name] = data.decode()
    return fields, files
