"""Letters as a sandbox's file shows them: their row ids, and the paths of their files."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from corral.adapters.attachments import make_safe_name
from corral.adapters.sandbox_bridge.schema import SessionFolder
from corral.domain.chat.model import ClaimedLetter, Conversation
from corral.domain.chat.payloads import parse_chat
from corral.domain.mail.model import Letter


def build_row_id(letter: Letter | ClaimedLetter) -> str:
    """Return the id of a letter's row.

    The fence is part of it, so that an acknowledgement by an earlier claimant has no effect.
    """
    return f"{letter.id}.{letter.fence}"


def with_sandbox_paths(letters: Sequence[Letter], folder: SessionFolder) -> list[Letter]:
    """Return the letters with the paths of their files inside the sandbox."""
    return [_with_sandbox_paths(letter, folder) for letter in letters]


def _with_sandbox_paths(letter: Letter, folder: SessionFolder) -> Letter:
    chat = parse_chat(letter)
    if chat is None or not chat.files:
        return letter
    files = [
        file | {"path": build_sandbox_path(folder, letter, number, file)}
        if file.get("path")
        else file
        for number, file in enumerate(chat.files, 1)
    ]
    assert isinstance(letter.body, dict)
    return msgspec.structs.replace(letter, body=letter.body | {"files": files})


def build_sandbox_path(
    folder: SessionFolder, letter: Letter, number: int, file: Mapping[str, Any]
) -> str:
    """Return the path in the sandbox of a file that came with a message."""
    name = make_safe_name(os.path.basename(str(file["path"])), number)
    return os.path.join(folder.inside, "inbox", build_row_id(letter), name)


def split_by_ack(
    conversation: Conversation, acks: Mapping[str, str]
) -> tuple[list[ClaimedLetter], list[ClaimedLetter]]:
    """Split the letters of a chat turn into those that the agent acknowledged and the others."""
    acknowledged = [
        claimed
        for claimed in conversation.claimed_letters
        if acks.get(build_row_id(claimed)) == "completed"
    ]
    rest = [claimed for claimed in conversation.claimed_letters if claimed not in acknowledged]
    return acknowledged, rest
