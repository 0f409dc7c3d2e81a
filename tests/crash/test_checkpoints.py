"""Crashes of checkpoint operations: a checkpoint and its writes are atomic."""

from pathlib import Path

from corral.api import Corral
from corral.domain.checkpoints.model import NewCheckpointWrite
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit

WRITES = [NewCheckpointWrite(position, "notes", "json", b"%d" % position) for position in range(3)]


def list_checkpoints(store: Corral, thread: str) -> list[tuple[str, str | None, bytes, int]]:
    checkpoints = (store.checkpoints.get(thread, id=f"s{n}") for n in range(3))
    return [(step.id, step.parent, step.body, len(step.writes)) for step in checkpoints if step]


def step(store: Corral, world: World) -> None:
    for n in range(2):
        parent = f"s{n - 1}" if n else None
        store.checkpoints.put("trip", f"s{n}", "json", b"%d" % n, parent=parent)
        store.checkpoints.put_writes("trip", f"s{n}", "task", WRITES)
        world.record(f"s{n}")


STEPS = [("s0", None, b"0", 3), ("s1", "s0", b"1", 3)]


def test_saved_checkpoint_survives_and_put_is_idempotent(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def step_again(store: Corral, world: World) -> None:
        for id, _, body, writes in list_checkpoints(store, "trip"):
            assert writes in (0, 3), "the writes of one task are atomic"
            assert writes or id not in world.records
            assert body == id[1:].encode()
        step(store, world)

    def check(store: Corral, world: World) -> None:
        assert list_checkpoints(store, "trip") == STEPS

    crash_at_every_commit(fresh_url, tmp_path, Scenario(run=step, recover=step_again, check=check))


def test_copy_trim_and_delete_of_a_thread_are_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def tidy(store: Corral, world: World) -> None:
        store.checkpoints.copy("trip", "copy")
        store.checkpoints.trim("copy", "", ["s1"])
        store.checkpoints.delete("trip")

    def check_and_tidy(store: Corral, world: World) -> None:
        assert list_checkpoints(store, "trip") in (STEPS, [])
        assert list_checkpoints(store, "copy") in ([], STEPS, STEPS[1:])
        if list_checkpoints(store, "trip"):
            tidy(store, world)

    def check(store: Corral, world: World) -> None:
        assert (list_checkpoints(store, "trip"), list_checkpoints(store, "copy")) == ([], STEPS[1:])

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(prepare=step, run=tidy, recover=check_and_tidy, check=check)
    )
