"""Groups: membership, posts as letters in order, read cursors and reactions."""

from pathlib import Path

import pytest

from corral.api import Corral
from corral.domain.groups import posts
from corral.kernel.clock import DAY, ManualClock
from corral.kernel.errors import Ambiguous, Conflict, Invalid, NotFound, Refused
from tests.support.grouped_cases import each_case
from tests.support.store import list_events, raises_without_change, rows, walk

ANN = "user:ann"


def create_agents(store: Corral, *names: str, role: str | None = None) -> None:
    for name in names:
        store.agents.create(name, role=role)


def list_members(store: Corral, group: str) -> list[str]:
    return [member.name for member in store.groups.members(group).items]


def receive_texts(store: Corral, mailbox: str) -> list[str]:
    """Claim and acknowledge the letters of a mailbox one by one; return their texts."""
    texts = []
    while letters := store.mail.claim(mailbox, owner="o"):
        texts.append(letters[0].body["text"])
        store.mail.ack(letters[0])
    return texts


def list_waiting_numbers(store: Corral, mailbox: str) -> list[int]:
    return [letter.body["number"] for letter in store.mail.list(mailbox=mailbox, limit=100).items]


def test_other_members_get_posts_as_letters_in_order(store: Corral) -> None:
    create_agents(store, "ada", "ben")
    store.groups.create("build", members=["agent:ada", "agent:ben"], by=ANN)
    for n in range(1, 4):
        assert store.groups.post("build", f"{n}", author="agent:ada").number == n
    assert receive_texts(store, "agent:ben") == receive_texts(store, ANN) == ["1", "2", "3"]
    assert receive_texts(store, "agent:ada") == []


def test_member_reads_all_posts_after_its_cursor(store: Corral) -> None:
    create_agents(store, "ada")
    group = store.groups.create("build", members=["agent:ada"], by=ANN)
    for n in range(5):
        store.groups.post("build", str(n), author=ANN)
    page = store.groups.read("build", member="agent:ada", limit=3)
    assert [post.text for post in page.items] == ["0", "1", "2"]
    # Reading does not move the cursor: a reader that crashes gets the posts again.
    assert store.groups.read("build", member="agent:ada", limit=3) == page
    store.groups.mark("build", 3, member="agent:ada")
    assert [post.number for post in store.groups.read("build", member="agent:ada").items] == [4, 5]
    assert [status.unread for status in store.groups.unread(member="agent:ada").items] == [2]
    assert [status.unread for status in store.groups.unread(member=ANN).items] == [0]
    assert store.groups.get(group.id).posts == 5


def test_mark_read_closes_only_letters_of_read_posts(
    store: Corral,
) -> None:
    create_agents(store, "ada")
    store.groups.create("build", members=["agent:ada"], by=ANN)
    for n in range(4):
        store.groups.post("build", str(n), author=ANN)
    (claimed,) = store.mail.claim("agent:ada", owner="o")
    store.groups.mark("build", 3, member="agent:ada")
    assert store.mail.ack(claimed).state == "done"  # a claimed letter is not closed
    assert list_waiting_numbers(store, "agent:ada") == [4]


def test_read_cursor_never_moves_back_or_past_the_end(store: Corral) -> None:
    store.groups.create("build", by=ANN)
    store.groups.post("build", "x", author=ANN)
    store.groups.post("build", "y", author=ANN)
    assert store.groups.mark("build", 1, member=ANN).read_number == 2
    for number in (3, -1):
        with raises_without_change(store, Invalid):
            store.groups.mark("build", number, member=ANN)


def test_only_members_post_read_and_react(store: Corral) -> None:
    create_agents(store, "eve")
    store.groups.create("build", by=ANN)
    store.groups.post("build", "x", author=ANN)
    with raises_without_change(store, Refused) as caught:
        store.groups.post("build", "y", author="agent:eve")
    assert "Join it first" in caught.value.message
    for operation in (
        lambda: store.groups.read("build", member="agent:eve"),
        lambda: store.groups.mark("build", 1, member="agent:eve"),
        lambda: store.groups.react("build", 1, "👍", member="agent:eve"),
    ):
        with raises_without_change(store, Refused):
            operation()


def test_agents_join_groups_of_their_role_automatically(store: Corral) -> None:
    create_agents(store, "ada", role="reviewer")
    create_agents(store, "ben", role="builder")
    store.groups.create("reviews", roles=["reviewer"], by=ANN)
    assert list_members(store, "reviews") == ["agent:ada", ANN]
    create_agents(store, "cleo", role="reviewer")
    store.agents.edit("ben", role="reviewer")
    assert list_members(store, "reviews") == ["agent:ada", "agent:ben", "agent:cleo", ANN]
    store.agents.edit("ben", role="builder")
    store.agents.retire("ada")
    assert list_members(store, "reviews") == ["agent:cleo", ANN]
    store.agents.restore("ada")
    assert list_members(store, "reviews") == ["agent:ada", "agent:cleo", ANN]


def test_explicit_member_stays_when_its_role_changes(store: Corral) -> None:
    create_agents(store, "ada", role="builder")
    store.groups.create("reviews", members=["agent:ada"], roles=["reviewer"], by=ANN)
    store.agents.edit("ada", role="planner")
    assert list_members(store, "reviews") == ["agent:ada", ANN]


def test_new_member_has_unread_backlog_without_letters(
    store: Corral,
) -> None:
    create_agents(store, "ada")
    store.groups.create("build", by=ANN)
    for n in range(1, 26):
        store.groups.post("build", str(n), author=ANN)
    store.groups.join("build", member="agent:ada")
    unread = store.groups.read("build", member="agent:ada", limit=100).items
    assert [post.number for post in unread] == list(range(6, 26))
    assert list_waiting_numbers(store, "agent:ada") == []
    assert store.groups.join("build", member="agent:ada").read_number == 5


def test_reads_of_an_actor_view_use_its_actor(store: Corral) -> None:
    store.groups.create("build", members=["user:bob"])
    store.groups.post("build", "it is green")
    unread = store.as_actor("user:bob").groups.unread().items
    assert [(group.name, group.unread) for group in unread] == [("build", 1)]
    assert [group.unread for group in store.groups.unread().items] == [0]


def test_leaving_closes_unread_letters(store: Corral) -> None:
    create_agents(store, "ada")
    store.groups.create("build", members=["agent:ada"], by=ANN)
    store.groups.post("build", "x", author=ANN)
    store.groups.leave("build", member="agent:ada")
    store.groups.post("build", "y", author=ANN)
    assert list_waiting_numbers(store, "agent:ada") == []
    with raises_without_change(store, NotFound):
        store.groups.leave("build", member="agent:ada")


def test_direct_message_is_a_post_in_a_group_of_two(store: Corral) -> None:
    create_agents(store, "ada")
    request = store.groups.send("agent:ada", "hello", author=ANN)
    reply = store.groups.send(ANN, "hi", author="agent:ada")
    assert (request.group_id, reply.number) == (reply.group_id, 2)
    assert receive_texts(store, "agent:ada") == ["hello"]
    assert receive_texts(store, ANN) == ["hi"]
    for operation in (store.groups.join, store.groups.leave):
        with raises_without_change(store, Refused):
            operation(request.group_id, member=ANN)
    with raises_without_change(store, Refused):
        store.groups.send(ANN, "to myself", author=ANN)


def test_broadcast_reaches_all_agents_including_later_ones(store: Corral) -> None:
    create_agents(store, "ada", "ben")
    store.groups.broadcast("one", author=ANN)
    create_agents(store, "cleo")
    store.groups.broadcast("two", author="agent:ada")
    assert receive_texts(store, "agent:ben") == ["one", "two"]
    assert receive_texts(store, "agent:cleo") == ["two"]
    assert receive_texts(store, "agent:ada") == ["one"]
    assert receive_texts(store, ANN) == ["two"]


def test_reaction_is_counted_once_and_can_be_removed(store: Corral) -> None:
    create_agents(store, "ada")
    store.groups.create("build", members=["agent:ada"], by=ANN)
    store.groups.post("build", "x", author=ANN)
    for member in (ANN, "agent:ada", "agent:ada"):
        post = store.groups.react("build", 1, "👍", member=member)
    assert post.reactions == {"👍": [ANN, "agent:ada"]} or post.reactions == {
        "👍": ["agent:ada", ANN]
    }
    store.groups.react("build", 1, "👍", member=ANN, remove=True)
    (updated,) = store.groups.read("build").items
    assert updated.reactions == {"👍": ["agent:ada"]}
    assert list_events(store, post.id).count("post.react") == 2


def test_number_of_different_reactions_is_limited(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posts, "MAX_EMOJIS", 2)
    create_agents(store, "ada")
    store.groups.create("build", members=["agent:ada"], by=ANN)
    store.groups.post("build", "x", author=ANN)
    for emoji in ("👍", "👎"):
        store.groups.react("build", 1, emoji, member=ANN)
    with raises_without_change(store, Refused):
        store.groups.react("build", 1, "🎉", member=ANN)
    assert len(store.groups.react("build", 1, "👍", member="agent:ada").reactions["👍"]) == 2


@pytest.mark.parametrize("emoji", ["", "a b", "x" * 65, "\x1b[31m", "a\nb", "\0"])
def test_invalid_reactions_are_rejected(store: Corral, emoji: str) -> None:
    store.groups.create("build", by=ANN)
    store.groups.post("build", "x", author=ANN)
    with raises_without_change(store, Invalid):
        store.groups.react("build", 1, emoji, member=ANN)


def test_post_is_idempotent_by_author_and_key(store: Corral) -> None:
    create_agents(store, "ada")
    store.groups.create("build", members=["agent:ada"], by=ANN)
    post = store.groups.post("build", "x", author=ANN, key="k")
    assert store.groups.post("build", "again", author=ANN, key="k") == post
    assert store.groups.post("build", "of another author", author="agent:ada", key="k").number == 2


def test_archived_group_is_readable_and_frees_its_name(store: Corral) -> None:
    archived = store.groups.create("build", by=ANN)
    store.groups.post("build", "x", author=ANN)
    store.groups.archive("build")
    replacement = store.groups.create("build", by=ANN)
    assert replacement.id != archived.id
    assert [post.text for post in store.groups.read(archived.id).items] == ["x"]
    for operation in (
        lambda: store.groups.post(archived.id, "y", author=ANN),
        lambda: store.groups.join(archived.id, member=ANN),
        lambda: store.groups.react(archived.id, 1, "+1", member=ANN),
    ):
        with raises_without_change(store, Refused):
            operation()
    assert [group.id for group in store.groups.list().items] == [replacement.id]
    assert [group.id for group in walk(store.groups.list, all=True)] == [
        replacement.id,
        archived.id,
    ]


def test_group_name_is_unique_within_a_project(store: Corral, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    first_project, second_project = (store.projects.register(folder).id for folder in folders)
    first_group = store.groups.create("build", project=first_project, by=ANN)
    second_group = store.groups.create("build", project=second_project, by=ANN)
    with raises_without_change(store, Conflict):
        store.groups.create("build", project=first_project, by=ANN)
    assert store.groups.get("build", project=second_project) == second_group
    with raises_without_change(store, Ambiguous) as caught:
        store.groups.get("build")
    assert first_group.id in caught.value.message
    store.projects.delete(first_project)
    assert store.groups.get("build") == second_group
    assert store.groups.get(first_group.id).state == "archived"


@each_case(
    ("name", "members"),
    [
        ("", []),
        ("a b", []),
        ("agent:x", []),
        ("grp_1", []),
        ("everyone", []),
        ("x" * 101, []),
        ("a\nb", []),
        ("build", ["ada"]),
        ("build", ["queue:x"]),
    ],
)
def test_invalid_groups_are_rejected(store: Corral, name: str, members: list[str]) -> None:
    with raises_without_change(store, Invalid):
        store.groups.create(name, members=members, by=ANN)


def test_unknown_agent_cannot_be_a_member(store: Corral) -> None:
    with raises_without_change(store, NotFound):
        store.groups.create("build", members=["agent:unknown"], by=ANN)
    create_agents(store, "ada")
    store.agents.retire("ada")
    with raises_without_change(store, Refused):
        store.groups.create("build", members=["agent:ada"], by=ANN)


def test_invalid_posts_are_rejected(store: Corral) -> None:
    store.groups.create("build", by=ANN)
    for text in ("", "a\0b", "x" * 100_000):
        with raises_without_change(store, Invalid):
            store.groups.post("build", text, author=ANN)
    with raises_without_change(store, Invalid):
        store.groups.post("build", "x", author=ANN, reply_to=1)
    with raises_without_change(store, NotFound):
        store.groups.post("unknown", "x", author=ANN)


def test_number_of_members_is_limited(store: Corral) -> None:
    store.settings.set("groups.max_members", 2)
    store.groups.create("build", members=["user:ben"], by=ANN)
    with raises_without_change(store, Refused):
        store.groups.join("build", member="user:cleo")


def test_retention_deletes_posts_and_groups_but_reuses_no_number(
    store: Corral, clock: ManualClock
) -> None:
    archived = store.groups.create("archived", by=ANN)
    store.groups.post("archived", "x", author=ANN)
    store.groups.archive("archived")
    store.groups.create("build", by=ANN)
    store.groups.post("build", "old", author=ANN)
    store.groups.react("build", 1, "+1", member=ANN)
    clock.advance(366 * DAY)
    store.groups.post("build", "new", author=ANN)
    counts = {result.table: result.rows for result in store.db.prune(dry_run=True)}
    pruned = {result.table: result.rows for result in store.db.prune()}
    for table, count in (("posts", 2), ("reactions", 1), ("groups", 1)):
        assert counts[table] == pruned[table] == count
    assert [post.number for post in store.groups.read("build").items] == [2]
    with pytest.raises(NotFound):
        store.groups.get(archived.id)
    assert rows(
        store, "SELECT count(*) FROM group_members WHERE group_id = :id", id=archived.id
    ) == [(0,)]
