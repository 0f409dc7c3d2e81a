"""Telegram's bot API, by long polling.

It has neither keys nor a history for bots: of a message whose outcome is not known, nobody can say
whether it arrived, and the channel's rule decides.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from corral.adapters.channels.api import FILE_SECONDS, PLAIN, SECONDS, Api, Trouble, contents
from corral.adapters.channels.contract import (
    NONSENSE,
    Attached,
    Batch,
    Count,
    File,
    Incoming,
    Kind,
    Outcome,
    Outgoing,
    Plain,
    Sent,
    Traits,
    Unsupported,
    calls_for,
    sound,
)

BASE = "https://api.telegram.org"
MOST_FILE = 20 << 20  # what bots may fetch
UPDATES = ["message", "edited_message", "callback_query"]


class Telegram(Plain):
    kind = "telegram"
    traits = Traits(
        max_text=4_096,
        counts=Count.UNITS,
        threads=True,
        edits=True,
        reactions=True,
        typing=True,
        buttons=True,
        files=True,
    )
    config: ClassVar[Mapping[str, bool]] = {"base_url": False}
    secrets: ClassVar[Mapping[str, bool]] = {"token": True}

    def __init__(self, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        super().__init__(config, secrets)
        self._base = str(config.get("base_url", BASE)).rstrip("/")
        self._web = Api(f"{self._base}/bot{secrets['token']}/")
        self._me: dict[str, Any] = {}

    def start(self) -> None:
        try:
            self._me = self._web.ask("GET", "getMe")["result"]
        except Trouble as error:
            raise OSError(str(error)) from None

    def stop(self) -> None:
        self._web.close()

    def health(self) -> str | None:
        try:
            self._web.ask("GET", "getMe")
        except Trouble as error:
            return str(error)
        return None

    # -- in -------------------------------------------------------------------------------------

    def receive(self, cursor: str | None, seconds: float) -> Batch:
        asked = {"timeout": int(seconds), "allowed_updates": UPDATES, "limit": 100}
        if cursor:
            asked["offset"] = int(cursor)
        told = self._web.ask("POST", "getUpdates", json=asked, seconds=seconds + SECONDS)
        updates = told.get("result", [])
        last = max((int(update["update_id"]) for update in updates), default=None)
        events: list[Incoming] = []
        unreadable: dict[str, str] = {}
        for update in updates:
            try:
                if (event := self._event(update)) is not None:
                    events.append(sound(event))
            except NONSENSE:
                unreadable[str(update["update_id"])] = "it makes no sense"
        # Asking from behind the last one is how Telegram is told that it was stored.
        return Batch(events, cursor if last is None else str(last + 1), unreadable)

    def _event(self, update: dict[str, Any]) -> Incoming | None:
        if pressed := update.get("callback_query"):
            return self._pressed(update, pressed)
        edited = update.get("edited_message")
        message = update.get("message") or edited
        if not message or "from" not in message:
            return None
        text = str(message.get("text") or message.get("caption") or "")
        chat = message["chat"]
        answered = message.get("reply_to_message", {})
        return Incoming(
            event_id=str(update["update_id"]),
            place=str(chat["id"]),
            place_name=chat.get("title") or chat.get("username"),
            direct=chat.get("type") == "private",
            thread=str(message["message_thread_id"]) if message.get("is_topic_message") else None,
            message_id=str(message["message_id"]),
            sender=str(message["from"]["id"]),
            sender_name=message["from"].get("username") or message["from"].get("first_name"),
            kind=Kind.EDIT if edited else Kind.TEXT,
            text=text,
            mentioned=self._is_meant(text, answered),
            reply_to=str(answered["message_id"]) if answered.get("message_id") else None,
            attached=self._files(message),
            at=int(message.get("date", 0)) * 1_000 or None,
        )

    def _is_meant(self, text: str, answered: dict[str, Any]) -> bool:
        name = self._me.get("username", "")
        own = answered.get("from", {}).get("id")
        called = bool(name) and calls_for(text, f"@{name}")
        return called or (own is not None and own == self._me.get("id"))

    def _pressed(self, update: dict[str, Any], pressed: dict[str, Any]) -> Incoming | None:
        question, _, option = str(pressed.get("data", "")).rpartition(":")
        message = pressed.get("message")
        if not question or not message:
            return None
        with suppress(Trouble):  # the button only shows for longer that it works
            self._web.ask("POST", "answerCallbackQuery", json={"callback_query_id": pressed["id"]})
        return Incoming(
            event_id=str(update["update_id"]),
            place=str(message["chat"]["id"]),
            direct=message["chat"].get("type") == "private",
            sender=str(pressed["from"]["id"]),
            sender_name=pressed["from"].get("username"),
            kind=Kind.ANSWER,
            text=option,
            question=question,
        )

    def _files(self, message: dict[str, Any]) -> list[Attached]:
        found = [
            message[name] for name in ("document", "audio", "video", "voice") if name in message
        ]
        if photos := message.get("photo"):
            found.append(photos[-1])
        return [self._file(each) for each in found]

    def _file(self, file: dict[str, Any]) -> Attached:
        name = str(file.get("file_name") or "photo.jpg")
        size = int(file.get("file_size") or 0)
        kind = file.get("mime_type")
        try:
            path = self._web.ask("POST", "getFile", json={"file_id": file["file_id"]})
            place = f"{self._base}/file/bot{self._secrets['token']}/{path['result']['file_path']}"
            return Attached(name, self._web.fetch(place, MOST_FILE), size, kind)
        except (Trouble, KeyError) as error:
            return Attached(name, None, size, kind, str(error))

    # -- out ------------------------------------------------------------------------------------

    def send(self, message: Outgoing) -> Outcome:
        if message.kind is Kind.REACTION:
            sign = [{"type": "emoji", "emoji": message.text}]
            return self._do(
                "setMessageReaction", message, message_id=_number(message.reply_to), reaction=sign
            )
        if message.kind is Kind.EDIT:
            return self._do(
                "editMessageText", message, message_id=_number(message.reply_to), text=message.text
            )
        given: dict[str, Any] = {"text": message.text}
        if message.file is not None:
            return self._document(message, message.file)
        if message.thread:
            given["message_thread_id"] = _number(message.thread)
        if message.reply_to:
            # What is answered may be gone by now; the answer is not.
            given["reply_parameters"] = {
                "message_id": _number(message.reply_to),
                "allow_sending_without_reply": True,
            }
        if message.kind is Kind.QUESTION:
            if not message.question:
                return Unsupported("a card without a question")
            # A button carries 64 bytes, so it names the option by its number.
            rows = [
                [{"text": option[:60], "callback_data": f"{message.question}:{number}"}]
                for number, option in enumerate(message.options, 1)
            ]
            given["reply_markup"] = {"inline_keyboard": rows}
        return self._do("sendMessage", message, **given)

    def _document(self, message: Outgoing, file: File) -> Outcome:
        given = {"chat_id": message.place}
        if message.thread:
            given["message_thread_id"] = message.thread
        try:
            document = {"document": (file.name, contents(file), file.type or PLAIN)}
            told = self._web.ask(
                "POST", "sendDocument", data=given, files=document, seconds=FILE_SECONDS
            )
        except Trouble as error:
            return error.outcome
        return Sent([str(told["result"]["message_id"])])

    def _do(self, method: str, message: Outgoing, **given: Any) -> Outcome:
        try:
            told = self._web.ask("POST", method, json={"chat_id": message.place, **given})
        except Trouble as error:
            if "message is not modified" in str(error):
                return Sent([str(given["message_id"])])  # it says this already
            return error.outcome
        result = told.get("result")
        id = result.get("message_id") if isinstance(result, dict) else given.get("message_id")
        return Sent([str(id)])

    def typing(self, place: str, thread: str | None) -> None:
        with suppress(Trouble):
            self._web.ask(
                "POST", "sendChatAction", json={"chat_id": place, "action": "typing"}, seconds=5.0
            )


def _number(id: str | None) -> int:
    return int(id) if id and id.lstrip("-").isdigit() else 0


ADAPTER = Telegram
