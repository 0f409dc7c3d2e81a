"""Crashes of group operations: no post is lost or duplicated, and order is kept."""

from pathlib import Path

from corral.api import Corral
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit

ANN = "user:ann"
OTHERS = ("agent:ada", "agent:ben")


def create_group(store: Corral, world: World) -> None:
    for name in ("ada", "ben"):
        store.agents.create(name, role="builder")
    store.groups.create("build", roles=["builder"], by=ANN)


def post_three(store: Corral, world: World) -> None:
    for n in range(3):
        world.record(store.groups.post("build", str(n), author=ANN, key=f"k{n}").id)


def check_posts(store: Corral, world: World) -> None:
    posts = store.groups.read("build").items
    assert [post.text for post in posts] == ["0", "1", "2"]
    assert {*world.records} <= {post.id for post in posts}
    for member in OTHERS:
        letters = store.mail.list(mailbox=member, all=True).items
        assert [letter.body["number"] for letter in letters] == [3, 2, 1]


def test_every_accepted_post_reaches_every_member_once(fresh_url: FreshUrl, tmp_path: Path) -> None:
    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(prepare=create_group, run=post_three, recover=post_three, check=check_posts),
    )


def test_crashed_reader_misses_no_post(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def prepare(store: Corral, world: World) -> None:
        create_group(store, world)
        for n in range(4):
            store.groups.post("build", str(n), author=ANN)

    def read(store: Corral, world: World) -> None:
        while posts := store.groups.read("build", member="agent:ada", limit=1).items:
            world.record(posts[0].text)
            store.groups.mark("build", posts[0].number, member="agent:ada")

    def check(store: Corral, world: World) -> None:
        texts = world.records
        assert list(dict.fromkeys(texts)) == ["0", "1", "2", "3"]
        assert len(texts) <= 5  # at most one post is read twice
        assert store.mail.list(mailbox="agent:ada").items == []
        assert len(store.mail.list(mailbox="agent:ben").items) == 4

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(prepare=prepare, run=read, recover=read, check=check)
    )


def test_group_creation_with_members_is_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def build(store: Corral, world: World) -> None:
        create_group(store, world)
        store.groups.send("agent:ada", "hello", author=ANN)

    def recover(store: Corral, world: World) -> None:
        existing = {agent.name for agent in store.agents.list().items}
        for name in {"ada", "ben"} - existing:
            store.agents.create(name, role="builder")
        if "build" not in {group.name for group in store.groups.list().items}:
            store.groups.create("build", roles=["builder"], by=ANN)

    def check(store: Corral, world: World) -> None:
        members = [member.name for member in store.groups.members("build").items]
        assert members == [*OTHERS, ANN]
        for group in store.groups.list().items:
            if group.kind == "direct":
                assert len(store.groups.members(group.id).items) == 2
                assert group.posts == 1

    crash_at_every_commit(fresh_url, tmp_path, Scenario(run=build, recover=recover, check=check))
