"""A full disk is reported, nothing is half written, and work continues once space is free."""

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

import corral
from corral.api import Corral
from corral.kernel.errors import StoreUnavailable
from tests.support.full_disk import fill
from tests.support.invariants import check_store
from tests.support.processes import Child
from tests.support.threads import race

MEGABYTE = 1 << 20
BODY = "x" * 20_000


def put_until_full(store: Corral) -> tuple[list[int], str]:
    """Return the numbers of the accepted letters, and the error of the next one."""
    accepted: list[int] = []
    while True:
        try:
            store.mail.put("queue:work", [len(accepted), BODY])
        except StoreUnavailable as error:
            return accepted, error.reason
        accepted.append(len(accepted))
        assert len(accepted) < 1_000, "the disk is too large for this test"


def list_numbers(store: Corral) -> list[int]:
    return [letter.body[0] for letter in store.mail.list(limit=1_000).items]


def check_full_and_free(path: Path, free: Callable[[], None]) -> None:
    with corral.open(path) as store:
        accepted, reason = put_until_full(store)
        print(f"{len(accepted)} letters were accepted, then: {reason}")
        assert reason in ("full", "io")
        assert len(accepted) > 10
        assert list_numbers(store) == accepted
        with pytest.raises(StoreUnavailable):
            store.mail.put("queue:work", ["again", BODY])
        free()
        store.mail.put("queue:work", [len(accepted), BODY])
        assert list_numbers(store) == [*accepted, len(accepted)]
        check_store(store)
    with corral.open(path) as store:
        assert list_numbers(store) == [*accepted, len(accepted)]
        check_store(store)


def test_full_disk_loses_nothing_that_was_accepted(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * MEGABYTE)
    check_full_and_free(small_disk / "corral.db", ballast.unlink)


def test_store_is_created_once_a_full_disk_has_space(
    small_disk: Path,
) -> None:
    ballast = small_disk / "ballast"
    fill(ballast)
    with pytest.raises(StoreUnavailable) as caught:
        corral.open(small_disk / "corral.db")
    assert caught.value.reason in ("full", "io")
    ballast.unlink()
    with corral.open(small_disk / "corral.db") as store:
        store.mail.put("queue:work", [0, "hello"])
        check_store(store)


def test_file_size_limit_loses_nothing_that_was_accepted(tmp_path: Path) -> None:
    def fill_up_to_limit() -> None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MEGABYTE, hard))
        check_full_and_free(
            tmp_path / "corral.db",
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)),
        )

    with Child(fill_up_to_limit) as child:
        child.result()


def test_full_disk_is_reported_to_every_thread_of_a_batch(
    small_disk: Path,
) -> None:
    with corral.open(small_disk / "corral.db") as store:
        put_until_full(store)
        before = list_numbers(store)
        racers = race([lambda: store.mail.put("queue:work", ["more", BODY])] * 8)
        assert {getattr(racer.error, "reason", racer.error) for racer in racers} <= {"full", "io"}
        assert list_numbers(store) == before
