"""Claude Code answers in a room of a real Matrix server, whatever is killed in between."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.real.home import RealHome, wait_until
from tests.real.homeserver import Homeserver
from tests.real.machine import steps
from tests.support.home import is_alive


class MatrixAgent:
    """A daemon that serves a room and can be killed."""

    def __init__(self, home: RealHome, server: Homeserver) -> None:
        self.home = home
        self.ann, self.bot = server.person("ann"), server.person("claude")
        home.install("claude")
        home.env["ROOM_TOKEN"] = self.bot.token
        home.json("secret", "set", "room", "env:ROOM_TOKEN", "--json")
        home.json(
            *("channel", "add", "room", "matrix", "--policy", "public", "--secret", "token=room"),
            *("--set", f"base_url={server.url}", "--json"),
        )
        home.json("agent", "create", "ada", "--provider", "claude", "--json")
        home.json("wiring", "add", "ada", "--channel", "room", "--json")
        self.pid = 0
        self.up()
        self.room = self.ann.room(self.bot, name="Den")

    def up(self) -> None:
        self.pid = int(self.home.json("up", "--port", "0", "--json")["daemon"]["pid"])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(self.pid), "the daemon is dead")

    def says(self, *those: dict[str, object]) -> None:
        self.ann.say(self.room, steps(*those))

    def answers(self) -> list[str]:
        return self.ann.heard(self.room, self.bot)

    def has_answered(self, *words: str) -> None:
        wait_until(lambda: len(self.answers()) >= len(words), f"{len(words)} answers")
        assert self.answers() == list(words)

    def close(self) -> None:
        for person in (self.ann, self.bot):
            person.close()


@pytest.fixture
def matrix_agent(home: RealHome, server: Homeserver) -> Iterator[MatrixAgent]:
    result = MatrixAgent(home, server)
    yield result
    result.close()


def test_claude_answers_across_a_killed_daemon_and_an_absent_server(
    matrix_agent: MatrixAgent, server: Homeserver
) -> None:
    matrix_agent.says({"text": "Hello, Ann."})
    matrix_agent.has_answered("Hello, Ann.")

    # The daemon is killed while Claude works: the run continues, and the next daemon sends its
    # reply.
    home = matrix_agent.home
    matrix_agent.says({"text": "I thought about it.", "gate": "think"})
    wait_until(lambda: len(home.requests()) == 2, "Claude was asked")
    matrix_agent.kill()
    home.stub.gate("think").set()
    with home.store() as store:
        (run, *_) = store.runs.list(limit=1).items
        store.runs.wait(run.id, timeout_ms=100_000)
        assert store.runs.get(run.id).state == "completed"
    assert matrix_agent.answers() == ["Hello, Ann."], "no daemon delivers it"
    matrix_agent.says({"text": "And this came while nobody was there."})
    matrix_agent.up()
    expected = ["Hello, Ann.", "I thought about it.", "And this came while nobody was there."]
    matrix_agent.has_answered(*expected)

    # The server is away when the reply is ready, and then the daemon is killed, too.
    matrix_agent.says({"text": "At last.", "gate": "away"})
    wait_until(lambda: len(home.requests()) == 4, "Claude was asked again")
    server.stop(signal.SIGKILL)
    home.stub.gate("away").set()
    with home.store() as store:
        wait_until(
            lambda: [m for m in store.messages.list().items if m.text == "At last."],
            "the answer is queued",
        )
        matrix_agent.kill()
        server.start()
        matrix_agent.up()
        matrix_agent.has_answered(*expected, "At last.")
        wait_until(lambda: not store.mail.list().items, "nothing is left over")
        sessions = {run.session_id for run in store.runs.list().items}
        assert len(sessions) == 1, "it was one conversation"
        assert {m.state for m in store.messages.list().items} == {"routed", "sent"}
    assert home.count_prompts("At last.") == 1
