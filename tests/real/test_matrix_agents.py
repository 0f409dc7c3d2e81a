"""Claude Code answers in a Matrix room although the daemon and the server are killed."""

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
        self.ann, self.bot = server.create_user("ann"), server.create_user("claude")
        home.install("claude")
        home.env["ROOM_TOKEN"] = self.bot.token
        home.json("secret", "set", "room", "env:ROOM_TOKEN", "--json")
        home.json(
            *("channel", "add", "room", "matrix", "--policy", "public", "--secret", "token=room"),
            *("--config", f"base_url={server.url}", "--json"),
        )
        home.json("agent", "create", "ada", "--provider", "claude", "--json")
        home.json("wiring", "add", "ada", "--channel", "room", "--json")
        self.pid = 0
        self.up()
        self.room = self.ann.create_room(self.bot, name="Den")

    def up(self) -> None:
        self.pid = int(self.home.json("up", "--port", "0", "--json")["daemon"]["pid"])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(self.pid), "the daemon is dead")

    def post(self, *items: dict[str, object]) -> None:
        self.ann.post(self.room, steps(*items))

    def list_answers(self) -> list[str]:
        return self.ann.list_texts(self.room, self.bot)

    def wait_for_answers(self, *texts: str) -> None:
        wait_until(lambda: len(self.list_answers()) >= len(texts), f"{len(texts)} answers")
        assert self.list_answers() == list(texts)

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
    matrix_agent.post({"text": "Hello, Ann."})
    matrix_agent.wait_for_answers("Hello, Ann.")

    # The daemon is killed while Claude works: the run continues, and the next daemon sends its
    # reply.
    home = matrix_agent.home
    matrix_agent.post({"text": "I thought about it.", "gate": "think"})
    wait_until(lambda: len(home.requests()) == 2, "the second model request")
    matrix_agent.kill()
    home.stub.gate("think").set()
    with home.store() as store:
        (run, *_) = store.runs.list(limit=1).items
        store.runs.wait(run.id, timeout_ms=100_000)
        assert store.runs.get(run.id).state == "completed"
    assert matrix_agent.list_answers() == ["Hello, Ann."], "no daemon delivers it"
    matrix_agent.post({"text": "This arrived without a daemon."})
    matrix_agent.up()
    expected = ["Hello, Ann.", "I thought about it.", "This arrived without a daemon."]
    matrix_agent.wait_for_answers(*expected)

    # The server is down when the reply is ready, and then the daemon is killed too.
    matrix_agent.post({"text": "At last.", "gate": "away"})
    wait_until(lambda: len(home.requests()) == 4, "the fourth model request")
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
        matrix_agent.wait_for_answers(*expected, "At last.")
        wait_until(lambda: not store.mail.list().items, "no letter is left")
        sessions = {run.session_id for run in store.runs.list().items}
        assert len(sessions) == 1, "one conversation"
        assert {m.state for m in store.messages.list().items} == {"routed", "sent"}
    assert home.count_prompts("At last.") == 1
