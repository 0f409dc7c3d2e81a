"""Chat with an agent in the terminal: a channel whose adapter is this process.

A message is stored before anything else happens, and an answer stays in the place's mailbox until
it was printed. If this process is killed, nothing is lost: the next `corral chat` prints the
answer. Without a daemon this process starts the agent itself.
"""

import os
import sys
import time
import uuid

import click

from corral import config
from corral.adapters.channels.contract import IncomingEvent
from corral.adapters.channels.terminal import TerminalAdapter
from corral.adapters.processes import process
from corral.cli import render
from corral.cli.context import App
from corral.domain.chat.model import Channel, Message, MessageState, Place
from corral.domain.mail.model import Letter, LetterState
from corral.kernel.display_text import escape_unprintable
from corral.kernel.errors import CorralError, Invalid, NotFound

CHANNEL_NAME = "terminal"
MAX_POLL_SECONDS = 1.0
"""Maximum time between two checks: a run can end without a commit that wakes this process."""


class TerminalChat:
    """The chat of one user with one agent in one directory."""

    def __init__(self, app: App, agent: str | None, timeout_ms: int | None) -> None:
        self._app = app
        self._store = app.local_store
        self._timeout = timeout_ms / 1_000 if timeout_ms is not None else None
        self._agent = self._resolve_agent(agent)
        self._user = config.user()
        self._owner = f"chat:{process.host()}:{os.getpid()}:{time.monotonic_ns()}"
        self._adapter = TerminalAdapter({}, {}, self._show)
        self._answers: list[str] = []
        self._reported_failures: set[tuple[str, int]] = set()
        self._channel = self._ensure_channel()
        self._place_id = f"{self._user}@{process.host()}:{self._agent}:{os.getcwd()}"

    def send_once(self, text: str) -> int:
        """Send one message and print the answer. Returns 1 if there is no answer."""
        if not text.strip():
            raise Invalid("The message is empty. Pass some text to --once.")
        message = self._send(text)
        answered = self._wait_for_answer(message)
        if self._app.json:
            render.write_json({"message": message, "answers": self._answers, "answered": answered})
        return 0 if answered else 1

    def run(self) -> int:
        """Read messages from standard input until its end; an empty line checks for answers."""
        place = self._find_place()
        if place is not None:
            self._deliver(place)
        prompt = f"{self._user}> " if sys.stdin.isatty() else ""
        if prompt:
            click.echo(f"Chat with {self._agent}. Type /help for help, Ctrl-D to exit.", err=True)
        while True:
            try:
                text = input(prompt)
            except EOFError:
                return 0
            except KeyboardInterrupt:
                click.echo()
                return 0
            if text.strip():
                self._send_and_wait(text)
            elif (place := self._find_place()) is not None:
                self._deliver(place)

    def _send_and_wait(self, text: str) -> None:
        try:
            self._wait_for_answer(self._send(text))
        except KeyboardInterrupt:
            click.echo("The agent continues. Press Enter to check for the answer.", err=True)
        except CorralError as error:
            click.echo(error.message, err=True)

    # -- agent and place ------------------------------------------------------------------------

    def _resolve_agent(self, agent: str | None) -> str:
        if agent is not None:
            return self._store.agents.get(agent).name
        page = self._store.agents.list(limit=2)
        if not page.items:
            raise NotFound(
                "No agent exists. Create one with `corral agent create NAME --provider claude`."
            )
        if len(page.items) > 1:
            raise Invalid("Several agents exist. Choose one with --agent NAME.")
        return page.items[0].name

    def _ensure_channel(self) -> Channel:
        try:
            channel = self._store.channels.get(CHANNEL_NAME)
        except NotFound:
            # After a crash, printing an answer twice is better than not at all.
            return self._store.channels.add(
                CHANNEL_NAME, "terminal", policy="strict", on_unconfirmed="retry"
            )
        if channel.kind != "terminal":
            raise Invalid(
                f"The channel {CHANNEL_NAME} is of kind {channel.kind}. Remove it with `corral "
                f"channel remove {CHANNEL_NAME}`, or chat on that platform."
            )
        return channel

    def _find_place(self) -> Place | None:
        try:
            return self._store.places.get(f"{CHANNEL_NAME}/{self._place_id}")
        except NotFound:
            return None

    def _create_place(self) -> None:
        """Create the place and its wiring before the first message, so that it is routed too."""
        place = self._store.places.register(
            self._channel.name, self._place_id, name=self._agent, direct=True
        )
        project = self._store.projects.register(os.getcwd())
        self._store.wirings.add(self._agent, place=place.id, project=project.id)

    # -- messages -------------------------------------------------------------------------------

    def _send(self, text: str) -> Message:
        incoming = IncomingEvent(
            event_id=uuid.uuid4().hex,
            place=self._place_id,
            place_name=f"{self._agent} in {os.path.basename(os.getcwd()) or '/'}",
            direct=True,
            sender=self._user,
            text=text,
        )
        if self._find_place() is None:
            self._create_place()
        return self._store.messages.receive(self._channel.id, incoming)

    def _wait_for_answer(self, message: Message) -> bool:
        """Print answers until the message is processed; return whether it was answered."""
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        place = self._store.places.get(message.place_id)
        with self._store.listening() as listener:
            while True:
                self._deliver(place)
                answered = self._is_answered(message)
                if (
                    answered is not None
                    and not self._store.mail.list(mailbox=place.mailbox, limit=1).items
                ):
                    return answered
                remaining = MAX_POLL_SECONDS if deadline is None else deadline - time.monotonic()
                if remaining <= 0:
                    click.echo("No answer yet. Check for it later with `corral chat`.", err=True)
                    return False
                listener.wait(min(remaining, self._next_poll()))

    def _next_poll(self) -> float:
        """Return the seconds until the next due work, at most MAX_POLL_SECONDS."""
        due = self._store.internal.chat.next_due()
        if due is None:
            return MAX_POLL_SECONDS
        return min(MAX_POLL_SECONDS, max((due - self._store.now()) / 1_000, 0.01))

    def _is_answered(self, message: Message) -> bool | None:
        """Return whether the message was answered; None while it is being processed."""
        if message.state is not MessageState.ROUTED:
            if message.state is not MessageState.HELD:
                click.echo(f"The message was not delivered: {message.reason}.", err=True)
            return False
        letters = [
            self._store.mail.get(route.letter_id)
            for route in message.routes
            if route.letter_id is not None
        ]
        for letter in letters:
            self._report_failure(letter)
        if any(
            letter.state in (LetterState.WAITING, LetterState.UNCONFIRMED) for letter in letters
        ):
            return None
        return all(letter.state is LetterState.DONE for letter in letters)

    def _report_failure(self, letter: Letter) -> None:
        """Report once for each attempt that the turn failed and will be retried."""
        now = self._store.now()
        if letter.state is not LetterState.WAITING or letter.owner or letter.due_at <= now:
            return
        failure = (letter.id, letter.attempts)
        if letter.last_error and failure not in self._reported_failures:
            self._reported_failures.add(failure)
            click.echo(
                f"{self._agent} failed: {escape_unprintable(letter.last_error)}. Retrying "
                f"{render.format_age(letter.due_at)}; press Ctrl-C to stop waiting.",
                err=True,
            )

    def _deliver(self, place: Place) -> None:
        """Do the work of a daemon for this chat, and print pending answers."""
        chat = self._store.internal.chat
        chat.finish_turns()
        chat.run_upkeep()
        chat.start_turns()
        self._store.runs.start_queued()
        chat.deliver(self._channel.id, self._adapter, owner=self._owner, place=place.id)

    def _show(self, text: str) -> None:
        self._answers.append(text)
        if not self._app.json:
            click.echo("\n".join(escape_unprintable(line) for line in text.splitlines()))
            sys.stdout.flush()
