"""A boxed agent's files and a host that dies: between any commit of the store and the file writes
around it nothing is lost and nothing doubled.

The inside outlives the host, as a sandbox may: what it wrote stays in its file. It is asked again
only when its letter comes again, and the platform is the diary.
"""

from pathlib import Path

import pytest

from corral.api import Corral
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit
from tests.crash.test_chat import EVENTS, adapter, connect
from tests.support.fake_channels import Runner
from tests.support.fake_sandbox_agent import FakeSandboxAgent, enable_sandbox

pytestmark = pytest.mark.usefixtures("fake_channels")


def prepare(store: Corral, world: World) -> None:
    connect("fake")(store, world)
    enable_sandbox(store)


def answer_everything(store: Corral) -> None:
    runner = Runner(store)
    busy = True
    while busy:
        busy = bool(store.internal.chat.finish_turns()) or bool(store.internal.chat.run_upkeep())
        busy = bool(store.internal.chat.start_turns()) or busy
        for run in store.runs.list(live=True, limit=50).items:
            if run.state == "queued":
                turn(store, runner)
            else:
                runner.die(run)  # its supervisor died with the process


def turn(store: Corral, runner: Runner) -> None:
    """What a supervisor and the inside do for one run."""
    run = runner.begin()
    store.internal.chat.prepare_sandbox(str(run.session_id))
    inside = FakeSandboxAgent(store, run)
    (row,) = inside.pending()
    word = row["content"]["said"].rpartition("say ")[2]
    inside.say(f"about {word}")
    store.internal.chat.sync_sandbox(run.id)
    inside.answer(f"you said {word}")
    runner.end(run)


def run(store: Corral, world: World) -> None:
    for event in EVENTS:
        store.messages.receive("chat", event)
        answer_everything(store)
        store.internal.chat.deliver("chat", adapter("fake", world), owner=f"o{store.now()}")


def recover(store: Corral, world: World) -> None:
    for event in EVENTS:
        store.messages.receive("chat", event)
    for _ in range(8):
        answer_everything(store)
        store.internal.chat.deliver("chat", adapter("fake", world), owner="recovery")
        world.clock.advance(10 * 60_000)


def check(store: Corral, world: World) -> None:
    """Each answer was shown once; what the agent said on the way may have been said again by a turn
    that was repeated, and is never lost."""
    shown = [deed.partition(" | ")[2] for deed in world.deeds]
    assert sorted(text for text in shown if text.startswith("you")) == ["you said 0", "you said 1"]
    for n in range(2):
        assert 1 <= shown.count(f"about {n}") <= 2
        assert shown.index(f"about {n}") < shown.index(f"you said {n}")
    messages = store.messages.list(limit=200).items
    assert {each.state for each in messages} == {"routed", "sent"}
    assert len({each.event_id for each in messages}) == len(messages)
    assert store.mail.list().items == []
    events = store.events.after(None, limit=1_000).items
    assert not [each for each in events if each.verb == "refuse"], "nobody honest is accused"


@pytest.mark.timeout(900)
def test_sandbox_messages_are_sent_once_after_any_crash(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(prepare=prepare, run=run, recover=recover, check=check),
    )
