"""Periodic work of chat that needs no platform."""

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from corral.domain.chat.model import CHAT_MAILBOX
from corral.domain.chat.outbound import cards, reconciliation
from corral.domain.host_requests import answers
from corral.domain.host_requests import ops as requests
from corral.domain.mail.model import Letter
from corral.kernel.errors import Conflict, CorralError, Held, IllegalMove
from corral.services.mail import claim, next_due

if TYPE_CHECKING:
    from corral.db.database import Database


def run_upkeep(database: "Database") -> int:
    """Do everything that is pending; returns how many things were done. Idempotent.

    Applies answers of owners, delivers secrets that were given, shows new questions as cards,
    updates cards of ended questions, and marks messages whose letter was dropped as undelivered.
    """
    count = _apply_owner_answers(database)
    if database.read(requests.list_waiting_secrets, mode="one"):
        count += len(database.write(requests.complete_secret_requests, repeatable=True))
    if database.read(cards.has_unshown):
        count += len(database.write(cards.show_open))
    if database.read(cards.list_ended):
        count += database.write(cards.close_ended)
    after: str | None = "msg_0"
    while after is not None:
        undelivered, after = database.read(partial(reconciliation.list_stale, after=after))
        for message in undelivered:
            database.write(partial(reconciliation.sync_with_letter, message=message))
    return count


def _apply_owner_answers(database: "Database") -> int:
    count = 0
    while _is_due(database, CHAT_MAILBOX):
        letters = claim(database, CHAT_MAILBOX, owner="chat")
        if not letters:
            break
        count += _apply_answer(database, letters[0])
    return count


def _is_due(database: "Database", mailbox: str) -> bool:
    due = next_due(database, mailbox)
    return due is not None and due <= database.clock.now()


def _apply_answer(database: "Database", letter: Letter) -> int:
    try:
        database.write(lambda tx: answers.apply_answer(tx, letter))
    except (Held, IllegalMove):
        return 0
    except CorralError as error:
        reason = error.message
        with suppress(Conflict):
            database.write(lambda tx: answers.record_failure(tx, letter, reason))
    return 1
