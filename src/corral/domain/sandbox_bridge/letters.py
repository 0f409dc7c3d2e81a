"""What a letter is called and shows in the file of a box."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from corral.adapters.attachments import safe_name
from corral.adapters.sandbox_bridge.schema import Folder
from corral.domain.chat.conversations.payloads import chat_of
from corral.domain.chat.model import Fenced, Talk
from corral.domain.mail.model import Letter


def row_id(letter: Letter | Fenced) -> str:
    """What the file calls a letter. The fence is part of it: an acknowledgement by whoever had the
    letter before stands for nothing."""
    return f"{letter.id}.{letter.fence}"


def as_seen(letters: Sequence[Letter], folder: Folder) -> list[Letter]:
    """The letters with files where the agent finds them."""
    return [_as_seen(letter, folder) for letter in letters]


def _as_seen(letter: Letter, folder: Folder) -> Letter:
    chat = chat_of(letter)
    if chat is None or not chat.files:
        return letter
    files = [
        file | {"path": place_of(folder, letter, number, file)} if file.get("path") else file
        for number, file in enumerate(chat.files, 1)
    ]
    assert isinstance(letter.body, dict)
    return msgspec.structs.replace(letter, body=letter.body | {"files": files})


def place_of(folder: Folder, letter: Letter, number: int, file: Mapping[str, Any]) -> str:
    """Where the agent finds a file that came with a message."""
    name = safe_name(os.path.basename(str(file["path"])), number)
    return os.path.join(folder.inside, "inbox", row_id(letter), name)


def split(talk: Talk, acks: Mapping[str, str]) -> tuple[list[Fenced], list[Fenced]]:
    """The letters of a turn that its agent acknowledged, and the others."""
    done = [each for each in talk.letters if acks.get(row_id(each)) == "completed"]
    return done, [each for each in talk.letters if each not in done]
