"""A talk at the terminal: a channel whose adapter is this process.

What is said is stored before anything else, and what is answered waits in the place's mailbox until
it was shown; so whoever is killed in between finds it the next time. Where no daemon runs, this
process wakes the agent by itself.
"""

import os
import sys
import time
import uuid

import click

from corral import config
from corral.adapters import process
from corral.adapters.channels.contract import Incoming
from corral.adapters.channels.terminal import Terminal
from corral.cli import render
from corral.cli.app import App
from corral.domain.chat.model import Channel, Message, MessageState, Place
from corral.domain.mail.model import Letter, LetterState
from corral.kernel.errors import CorralError, Invalid, NotFound
from corral.kernel.text import printable

NAME = "terminal"
LOOK = 1.0  # seconds: runs end without a commit of ours


class Talk:
    """One person's talk with one agent in one directory."""

    def __init__(self, app: App, agent: str | None, timeout_ms: int | None) -> None:
        self._app = app
        self._store = app.store_here
        self._timeout = timeout_ms / 1_000 if timeout_ms is not None else None
        self._agent = self._chosen(agent)
        self._user = config.user()
        self._owner = f"chat:{process.host()}:{os.getpid()}:{time.monotonic_ns()}"
        self._adapter = Terminal({}, {}, self._show)
        self._shown: list[str] = []
        self._failures: set[tuple[str, int]] = set()
        self._channel = self._connected()
        self._where = f"{self._user}@{process.host()}:{self._agent}:{os.getcwd()}"

    # -- what it is called for ------------------------------------------------------------------

    def once(self, text: str) -> int:
        """Say one thing, show the answer, and tell by the exit code whether there was one."""
        if not text.strip():
            raise Invalid("There is nothing to say; write some words behind --once.")
        said = self._say(text)
        answered = self._wait_for(said)
        if self._app.json:
            render.write_json({"message": said, "answers": self._shown, "answered": answered})
        return 0 if answered else 1

    def go_on(self) -> int:
        """Take lines until there are no more."""
        place = self._place()
        if place is not None:
            self._look(place)
        prompt = f"{self._user}> " if sys.stdin.isatty() else ""
        if prompt:
            click.echo(f"You talk with {self._agent}; /help says more, Ctrl-D ends.", err=True)
        while True:
            try:
                line = input(prompt)
            except EOFError:
                return 0
            except KeyboardInterrupt:
                click.echo()
                return 0
            if line.strip():
                self._answer(line)
            elif (known := self._place()) is not None:
                self._look(known)

    def _answer(self, line: str) -> None:
        try:
            self._wait_for(self._say(line))
        except KeyboardInterrupt:
            click.echo("It goes on without you; an empty line looks for the answer.", err=True)
        except CorralError as error:
            click.echo(error.message, err=True)

    # -- who and where --------------------------------------------------------------------------

    def _chosen(self, agent: str | None) -> str:
        if agent is not None:
            return self._store.agents.get(agent).name
        page = self._store.agents.list(limit=2)
        if not page.items:
            raise NotFound(
                "There is no agent to talk to; make one with `corral agent create NAME --provider "
                "claude`."
            )
        if len(page.items) > 1:
            raise Invalid("There are several agents; say which with --agent NAME.")
        return page.items[0].name

    def _connected(self) -> Channel:
        try:
            found = self._store.channels.get(NAME)
        except NotFound:
            # Shown twice after a crash is better than never.
            return self._store.channels.add(NAME, "terminal", policy="strict", in_doubt="retry")
        if found.kind != "terminal":
            raise Invalid(
                f"The channel {NAME} is of kind {found.kind}; remove it, or talk there instead."
            )
        return found

    def _place(self) -> Place | None:
        try:
            return self._store.places.get(f"{NAME}/{self._where}")
        except NotFound:
            return None

    # -- saying and hearing ---------------------------------------------------------------------

    def _say(self, text: str) -> Message:
        said = Incoming(
            event_id=uuid.uuid4().hex,
            place=self._where,
            place_name=f"{self._agent} in {os.path.basename(os.getcwd()) or '/'}",
            direct=True,
            sender=self._user,
            text=text,
        )
        if self._place() is None:
            self._begin()
        return self._store.messages.receive(self._channel.id, said)

    def _begin(self) -> None:
        """The place is known before its first message, so that the agent hears that one, too."""
        place = self._store.places.meet(
            self._channel.name, self._where, name=self._agent, direct=True
        )
        project = self._store.projects.register(os.getcwd())
        self._store.wirings.add(self._agent, place=place.id, project=project.id)

    def _wait_for(self, said: Message) -> bool:
        """Show what comes until the message was dealt with; whether it was answered."""
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        place = self._store.places.get(said.place_id)
        with self._store.listening() as listener:
            while True:
                self._look(place)
                answered = self._answered(said)
                if (
                    answered is not None
                    and not self._store.mail.list(mailbox=place.mailbox, limit=1).items
                ):
                    return answered
                left = LOOK if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    click.echo("No answer yet; `corral chat` shows it when it is there.", err=True)
                    return False
                listener.wait(min(left, self._pause()))

    def _pause(self) -> float:
        """Seconds until there is something to do even if nothing happens."""
        due = self._store.gateway.next_due()
        if due is None:
            return LOOK
        return min(LOOK, max((due - self._store.now()) / 1_000, 0.01))

    def _answered(self, said: Message) -> bool | None:
        """Whether it was; None: not yet."""
        if said.state is not MessageState.HEARD:
            if said.state is not MessageState.HELD:
                click.echo(f"Nobody heard it: {said.reason}.", err=True)
            return False
        letters = [
            self._store.mail.get(route.letter_id)
            for route in said.routes
            if route.letter_id is not None
        ]
        for letter in letters:
            self._tell_failure(letter)
        if any(letter.state in (LetterState.WAITING, LetterState.UNKNOWN) for letter in letters):
            return None
        return all(letter.state is LetterState.DONE for letter in letters)

    def _tell_failure(self, letter: Letter) -> None:
        """Say once that a turn failed: it is tried again, and nobody should wait in the dark."""
        now = self._store.now()
        if letter.state is not LetterState.WAITING or letter.owner or letter.due_at <= now:
            return
        failure = (letter.id, letter.attempts)
        if letter.last_error and failure not in self._failures:
            self._failures.add(failure)
            click.echo(
                f"{self._agent} could not answer ({printable(letter.last_error)}); it is tried "
                f"again {render.ago(letter.due_at)}. Ctrl-C leaves.",
                err=True,
            )

    def _look(self, place: Place) -> None:
        """Do what a daemon would do for this talk, and show what is there."""
        gateway = self._store.gateway
        gateway.settle()
        gateway.look_after()
        gateway.wake()
        self._store.runs.start_queued()
        gateway.deliver(self._channel.id, self._adapter, owner=self._owner, place=place.id)

    def _show(self, text: str) -> None:
        self._shown.append(text)
        if not self._app.json:
            click.echo("\n".join(printable(line) for line in text.splitlines()))
            sys.stdout.flush()
