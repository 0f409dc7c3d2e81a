"""Input for a run: typed by its supervisor, or put into the mailbox of its session."""

from typing import TYPE_CHECKING, Any

from corral.adapters import control_socket
from corral.adapters.processes import process
from corral.config import run_folder
from corral.db.tx import Tx
from corral.domain.mail import ops as mail
from corral.domain.mail.model import HopLimitReached, Letter
from corral.domain.runs.model import Run
from corral.kernel.errors import Conflict, CorralError, Invalid, Refused
from corral.kernel.validation import check_text
from corral.services.runs.lifecycle import refresh
from corral.services.runs.model import SentInput
from corral.services.runs.queries import get_run

if TYPE_CHECKING:
    from corral.db.database import Database

MAX_SENT = 64 * 1024
# The supervisor waits for the screen to settle before each key, and confirms the last one.
REPLY_SECONDS = 40.0


def send_input(
    database: "Database", id: str, text: str, *, enter: bool, dialog: str | None
) -> SentInput:
    """Send text to a run; see `Runs.send`."""
    cleaned = check_text(text, "The text", max_bytes=MAX_SENT)
    run = refresh(database, get_run(database, id))
    if not run.is_live:
        raise Conflict(
            f"{run.id} is {run.state}. Continue it with `corral resume {run.id}`.", id=run.id
        )
    reply = _ask_supervisor(run, cleaned, enter=enter, dialog=dialog)
    if reply.get("ok"):
        answered = reply.get("how") == "answered"
        return SentInput(
            run.id,
            "answered" if answered else "typed",
            None,
            option=reply.get("option") if answered else None,
        )
    error = reply.get("error")
    can_mail = run.session_id is not None and dialog is None
    if error is not None and error != "no_input" and not (error == "inside_run" and can_mail):
        raise _input_error(run, str(error), reply)
    if not can_mail:
        raise Refused(f"{run.id} accepts no input. Start it with --pty to type into it.", id=run.id)
    letter = database.write(lambda tx: _put_into_mailbox(tx, run, cleaned))
    if isinstance(letter, HopLimitReached):  # the transaction committed the notices of both sides
        raise Refused(letter.message)
    return SentInput(run.id, "mailed", letter.id)


def _put_into_mailbox(tx: Tx, run: Run, text: str) -> Letter | HopLimitReached:
    """Put the text into the mailbox of the run's session.

    From inside another run, the letter is signed by that run's agent and counts as a hop.
    """
    mailbox = f"session:{run.session_id}"
    if tx.run_id is None:
        return mail.put(tx, mailbox, text, project=run.project_id)
    sender = tx.actor if tx.actor.startswith("agent:") else f"queue:{tx.run_id}"
    return mail.put_by_caller(tx, mailbox, text, sender=sender, project=run.project_id)


def _ask_supervisor(run: Run, text: str, *, enter: bool, dialog: str | None) -> dict[str, Any]:
    """Return the supervisor's reply; empty when it is not reachable on this machine.

    Raises Conflict when it may have typed the text, so that the text is not delivered twice.
    """
    if run.host == process.host():
        try:
            return control_socket.send_request(
                run_folder(run.id),
                timeout=REPLY_SECONDS,
                op="send",
                text=text,
                enter=enter,
                dialog=dialog,
            )
        except control_socket.NoResponse:
            raise _input_error(run, "outcome_unknown", {}) from None
        except OSError:
            pass
    return {}


def _input_error(run: Run, error: str, reply: dict[str, Any]) -> CorralError:
    """Return the error for a text that the supervisor did not accept."""
    name, attach = run.name or run.id, f"`corral attach {run.name or run.id}`"
    if error == "not_an_option":
        options = [str(option) for option in reply.get("asks", [])]
        listed = "; ".join(options)
        return Invalid(
            f"This is not an answer to the question of {name}. Nothing was typed. "
            f"Answer with yes, no or one of: {listed}.",
            id=run.id,
            code=error,
            question=reply.get("question"),
            options=options,
        )
    messages = {
        "dialog_unreadable": f"The options of the question of {name} are not readable. Nothing was "
        f"typed. Answer it in {attach}.",
        "dialog_changed": f"{name} does not show this question any more. The answer was not "
        f"given. See its current question with `corral show {name}`.",
        "dialog_opened": f"{name} opened a question before the text could be typed. See it with "
        f"`corral show {name}`, answer it, and send the text again.",
        "typed_into_dialog": f"{name} opened a question while the text was typed. The text was "
        f"not submitted. Look at it in {attach}.",
        "no_input_line": f"{name} shows no input line on its screen. Nothing was typed. Look at "
        f"it in {attach}.",
        "not_submitted": f"{name} did not submit the text, which may still be in its input line. "
        f"Look at it in {attach}.",
        "answer_not_accepted": f"{name} did not accept the answer: its question is still open. "
        f"Answer it in {attach}.",
        "inside_run": f"{name} was not sent the text: a process inside of a run cannot answer in a "
        "person's place. Write to its agent instead (`corral mail write`).",
        "outcome_unknown": f"The supervisor of {name} did not respond, so the text may have been "
        f"typed. Look at it in {attach} before you send the text again.",
        "busy": f"{name} is still being sent other texts. Send it again in a moment.",
        "ended": f"{name} ended before the text was typed. Continue it with "
        f"`corral resume {name}`.",
    }
    other = f"{name} did not accept the text ({error}). Look at it in {attach}."
    return Conflict(messages.get(error, other), id=run.id, code=error)
