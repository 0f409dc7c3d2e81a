"""Concurrent posts: none is lost, and all mailboxes have the same order."""

import os

import corral
from corral.kernel.errors import Conflict, Refused
from tests.support.invariants import check_store
from tests.support.processes import run_concurrently
from tests.support.threads import race

POSTERS = 3
POSTS = 6


def test_concurrent_posts_are_numbered_and_delivered_in_order(
    url: str,
) -> None:
    names = [f"a{n}" for n in range(POSTERS)]
    with corral.open(url) as store:
        for name in [*names, "reader"]:
            store.agents.create(name)
        members = [f"agent:{name}" for name in [*names, "reader"]]
        store.groups.create("build", members=members, by="user:ann")

    def post_as(name: str) -> list[int]:
        with corral.open(url) as store:
            return [
                store.groups.post("build", f"{name} {n}", author=f"agent:{name}").number
                for n in range(POSTS)
            ]

    works = [lambda name=name: post_as(name) for name in names]
    numbers = run_concurrently(works)
    count = POSTERS * POSTS
    assert sorted(number for worker_numbers in numbers for number in worker_numbers) == list(
        range(1, count + 1)
    )
    assert all(worker_numbers == sorted(worker_numbers) for worker_numbers in numbers)
    with corral.open(url) as store:
        # In the order in which the mailbox delivers them.
        delivered = []
        while letters := store.mail.claim("agent:reader", owner="o", limit=7):
            for letter in letters:
                delivered.append(letter.body["number"])
                store.mail.ack(letter)
        assert delivered == list(range(1, count + 1))
        read = store.groups.read("build", limit=1_000).items
        assert [post.number for post in read] == delivered
        check_store(store)


def test_concurrent_creation_makes_one_group(
    url: str,
) -> None:
    with corral.open(url) as store:
        store.agents.create("ada")

    def create_group() -> tuple[bool, str]:
        with corral.open(url) as store:
            direct = store.groups.send("agent:ada", str(os.getpid()), author="user:ann").group_id
            try:
                store.groups.create("build", by="user:ann")
            except Conflict:
                return False, direct
            return True, direct

    results = run_concurrently([create_group] * 4)
    assert sum(first for first, _ in results) == 1
    assert len({direct for _, direct in results}) == 1
    with corral.open(url) as store:
        assert store.groups.get(results[0][1]).posts == 4
        check_store(store)


def test_concurrent_joins_respect_the_member_limit(url: str) -> None:
    with corral.open(url) as store:
        store.settings.set("groups.max_members", 4)
        store.groups.create("build", by="user:ann")

        def join(n: int) -> int:
            try:
                store.groups.join("build", member=f"user:u{n}")
            except Refused:
                return 0
            return 1

        racers = race([lambda n=n: join(n) for n in range(10)])
        assert sum(racer.result() for racer in racers) == 3
        assert len(store.groups.members("build").items) == 4
