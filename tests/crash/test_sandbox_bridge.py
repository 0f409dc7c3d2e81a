"""Crashes of the host of a sandboxed agent: no message is lost or sent twice.

The sandboxed agent survives the crash of the host, and its messages stay in its file. It runs again
only if its letter is delivered again.
"""

from pathlib import Path

import pytest

from corral.api import Corral
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit
from tests.crash.test_chat import EVENTS, connect, make_adapter
from tests.support.fake_channels import Runner
from tests.support.fake_sandbox_agent import FakeSandboxAgent, enable_sandbox

pytestmark = pytest.mark.usefixtures("fake_channels")


def prepare(store: Corral, world: World) -> None:
    connect("fake")(store, world)
    enable_sandbox(store)


def run_all_turns(store: Corral) -> None:
    runner = Runner(store)
    busy = True
    while busy:
        busy = bool(store.internal.chat.finish_turns()) or bool(store.internal.chat.run_upkeep())
        busy = bool(store.internal.chat.start_turns()) or busy
        for run in store.runs.list(live=True, limit=50).items:
            if run.state == "queued":
                run_turn(store, runner)
            else:
                runner.die(run)  # its supervisor was killed too


def run_turn(store: Corral, runner: Runner) -> None:
    """Run one turn, like a supervisor and a sandboxed agent."""
    run = runner.begin()
    store.internal.chat.prepare_sandbox(str(run.session_id))
    agent = FakeSandboxAgent(store, run)
    (row,) = agent.pending()
    number = row["content"]["original_text"].rpartition("say ")[2]
    agent.say(f"about {number}")
    store.internal.chat.sync_sandbox(run.id)
    agent.answer(f"you wrote {number}")
    runner.end(run)


def run(store: Corral, world: World) -> None:
    for event in EVENTS:
        store.messages.receive("chat", event)
        run_all_turns(store)
        store.internal.chat.deliver("chat", make_adapter("fake", world), owner=f"o{store.now()}")


def recover(store: Corral, world: World) -> None:
    for event in EVENTS:
        store.messages.receive("chat", event)
    for _ in range(8):
        run_all_turns(store)
        store.internal.chat.deliver("chat", make_adapter("fake", world), owner="recovery")
        world.clock.advance(10 * 60_000)


def check(store: Corral, world: World) -> None:
    """Every answer is sent once. A repeated turn may repeat intermediate messages."""
    texts = [record.partition(" | ")[2] for record in world.records]
    assert sorted(text for text in texts if text.startswith("you")) == [
        "you wrote 0",
        "you wrote 1",
    ]
    for n in range(2):
        assert 1 <= texts.count(f"about {n}") <= 2
        assert texts.index(f"about {n}") < texts.index(f"you wrote {n}")
    messages = store.messages.list(limit=200).items
    assert {message.state for message in messages} == {"routed", "sent"}
    assert len({message.event_id for message in messages}) == len(messages)
    assert store.mail.list().items == []
    events = store.events.after(None, limit=1_000).items
    assert not [event for event in events if event.verb == "refuse"], "no valid row is rejected"


@pytest.mark.timeout(900)
def test_sandbox_messages_are_sent_once_after_any_crash(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(prepare=prepare, run=run, recover=recover, check=check),
    )
