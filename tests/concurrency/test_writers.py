"""Many processes write one SQLite file: none starves, none is held up by the dead."""

import os
import signal
import time
from pathlib import Path

import pytest

import corral
from corral.rooms.mail import ops as mail
from tests.support.invariants import check_store
from tests.support.processes import Child, at_once

SECONDS = 3.0


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/corral.db"
    corral.open(url).close()
    return url


def test_sixteen_processes_on_one_file_are_all_served_and_lose_nothing(file_url: str) -> None:
    """The bench measures this against its bar; here only what no noise explains."""

    def put_and_ack() -> tuple[int, float]:
        served, longest = 0, 0.0
        mailbox = f"queue:{os.getpid()}"
        with corral.open(file_url) as store:
            end = time.monotonic() + SECONDS
            while (start := time.monotonic()) < end:
                store.mail.put(mailbox, served)
                (letter,) = store.mail.claim(mailbox, owner="me")
                store.mail.ack(letter)
                longest = max(longest, time.monotonic() - start)
                served += 1
        return served, longest

    results = at_once([put_and_ack] * 16)
    counts = sorted(served for served, _ in results)
    print(f"served: least {counts[0]}, most {counts[-1]}, ratio {counts[0] / counts[-1]:.2f};")
    print(f"longest round of three writes: {max(longest for _, longest in results):.3f} s")
    assert counts[0] >= 0.2 * counts[-1]
    with corral.open(file_url) as store:
        done = store.db.sql("SELECT state, count(*) FROM letters GROUP BY state").rows
        assert done == [["done", sum(counts)]]
        assert store.db.sql("SELECT count(*) FROM events").rows == [[2 * sum(counts)]]
        check_store(store)


def test_a_process_that_is_killed_while_it_has_the_turn_frees_it(file_url: str) -> None:
    told, tell = os.pipe()

    def take_the_turn_and_stay() -> None:
        with corral.open(file_url) as store, store.transaction() as tx:
            mail.put(tx, "queue:work", "half done")
            os.write(tell, b"x")
            time.sleep(60)

    with Child(take_the_turn_and_stay) as child:
        os.read(told, 1)
        waiting = Child(lambda: put_one(file_url))
        with waiting:
            time.sleep(0.05)  # it stands in line behind the one that dies
            child.kill()
            killed = time.monotonic()
            waited = waiting.result(10) - killed
    print(f"the next one wrote {waited * 1_000:.1f} ms after the death")
    assert waited < 2
    with corral.open(file_url) as store:
        assert [letter.body for letter in store.mail.list().items] == ["after the death"]
        check_store(store)


def put_one(url: str) -> float:
    with corral.open(url) as store:
        store.mail.put("queue:work", "after the death")
        return time.monotonic()


def test_a_process_that_is_killed_while_it_stands_in_line_holds_nobody_up(file_url: str) -> None:
    with corral.open(file_url) as store:
        with store.transaction(), Child(lambda: put_one(file_url)) as child:
            time.sleep(0.1)  # it holds the door now, and waits for the turn
            child.kill()
        store.mail.put("queue:work", "mine")
        assert put_one(file_url) > 0
        assert [letter.body for letter in store.mail.list().items] == ["mine", "after the death"]


def test_a_child_forked_in_the_middle_of_a_write_does_not_keep_the_turn_of_its_dead_parent(
    file_url: str,
) -> None:
    """A daemon's keepers outlive it, and were forked at any moment of its life."""
    told, tell = os.pipe()

    def fork_while_writing_and_stay() -> None:
        with corral.open(file_url) as store, store.transaction() as tx:
            mail.put(tx, "queue:work", "half done")
            keeper = os.fork()
            if keeper == 0:
                time.sleep(30)
                os._exit(0)
            os.write(tell, f"{keeper}\n".encode())
            time.sleep(60)

    with Child(fork_while_writing_and_stay) as parent:
        keeper = int(os.read(told, 100))
        try:
            parent.kill()
            with Child(lambda: put_one(file_url)) as next_one:
                next_one.result(5)
        finally:
            os.kill(keeper, signal.SIGKILL)
