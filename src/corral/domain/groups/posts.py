"""Posts of groups: write, list, mark as read and react."""

from collections.abc import Sequence

import msgspec

from corral.db.tx import Tx
from corral.domain.groups import ops, sql
from corral.domain.groups.model import (
    Group,
    GroupKind,
    GroupMember,
    Post,
    StoredPost,
    build_letter_key,
    check_member,
    check_open,
)
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Chain
from corral.domain.mail.payloads import GroupPost
from corral.kernel.clock import DAY
from corral.kernel.errors import Invalid, NotFound, Refused
from corral.kernel.pagination import LAST_NUMBER, Page
from corral.kernel.validation import (
    MAX_NAME,
    check_int,
    check_optional_text,
    check_text,
    encode_json,
)

LETTER_MS = 30 * DAY
"""How long the letter of a post waits; the post itself is kept longer."""
MAX_EMOJI = 64
MAX_EMOJIS = 50


def post(
    tx: Tx,
    group: str,
    text: str,
    *,
    author: str | None = None,
    reply_to: int | None = None,
    key: str | None = None,
    project: str | None = None,
) -> Post:
    """Post to a group of the author; every other member gets it as a letter, in order.

    Secrets are redacted. Idempotent by author and `key`. A post of an agent continues the chain of
    letters that led to it; raises Refused beyond `mail.max_hops`.
    """
    target = ops.get(tx, group, project=project)
    return _post(tx, target, text, author=author or tx.actor, reply_to=reply_to, key=key)


def send_direct(
    tx: Tx, to: str, text: str, *, author: str | None = None, key: str | None = None
) -> Post:
    """Send a direct message to one agent or person, in the direct group of both."""
    sender = author or tx.actor
    return _post(tx, ops.ensure_direct(tx, sender, to), text, author=sender, reply_to=None, key=key)


def broadcast(
    tx: Tx,
    text: str,
    *,
    author: str | None = None,
    project: str | None = None,
    key: str | None = None,
) -> Post:
    """Post to all agents; the author joins the group."""
    sender = check_member(author or tx.actor)
    group = ops.ensure_everyone(tx, project=project)
    ops.join(tx, group.id, member=sender)
    return _post(tx, group, text, author=sender, reply_to=None, key=key)


def list_posts(
    tx: Tx,
    group: str,
    *,
    member: str | None = None,
    newest: bool = False,
    project: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[Post]:
    """List posts, oldest first or newest first; for a `member`, only those it has not read.

    Does not move the member's cursor: call `mark_read` after the posts have arrived.
    """
    target = ops.get(tx, group, project=project)
    cursor = 0
    if member is not None:
        cursor = ops.require_member(tx, target, check_member(member)).read_number
    if newest:
        page = sql.POSTS_BEFORE.page(tx, after=after, limit=limit, group_id=target.id)
    else:
        page = sql.POSTS_AFTER.page(
            tx, after=after, limit=limit, group_id=target.id, position=cursor
        )
    return Page(_with_reactions(tx, page.items), page.next)


def mark_read(
    tx: Tx, group: str, number: int, *, member: str | None = None, project: str | None = None
) -> GroupMember:
    """Move a member's cursor to this number, and close the letters of the posts up to it.

    The cursor never moves back, so repeated and late calls have no effect.
    """
    target = ops.get(tx, group, project=project)
    reader = check_member(member or tx.actor)
    membership = ops.require_member(tx, target, reader)
    if not 0 <= check_int(number, "The number") <= target.posts:
        raise Invalid(f"{target.name} has posts 1 to {target.posts}, not {number}.", number=number)
    marked = tx.first(sql.MARK_READ, group_id=target.id, member=reader, number=number)
    if marked is None:
        return membership
    ops.close_letters(tx, target, reader, behind=membership.read_number, upto=number)
    tx.emit(
        "group",
        "mark",
        target.id,
        project_id=target.project_id,
        data={"member": reader, "number": number},
    )
    return marked


def react(
    tx: Tx,
    group: str,
    number: int,
    emoji: str,
    *,
    member: str | None = None,
    remove: bool = False,
    project: str | None = None,
) -> Post:
    """Add a reaction to a post, or remove it: an emoji or a short word. Idempotent."""
    target = ops.get(tx, group, project=project)
    check_open(target)
    reader = check_member(member or tx.actor)
    ops.require_member(tx, target, reader)
    check_text(emoji, "The emoji", max_bytes=MAX_EMOJI)
    if any(not c.isprintable() and c != "\u200d" for c in emoji) or " " in emoji:
        raise Invalid(
            f"Invalid reaction {emoji!r}: expected an emoji or a short word.", emoji=emoji
        )
    stored = tx.first(sql.BY_NUMBER, group_id=target.id, number=check_int(number, "The number"))
    if stored is None:
        raise NotFound(
            f"{target.name} has no post {number}. List its posts with "
            f"`corral group read {target.name}`.",
            group=target.id,
            number=number,
        )
    if not remove:
        # Serialized: concurrent reactions would all pass the limit.
        tx.serialize(f"emojis:{stored.id}")
        if tx.value(sql.COUNT_EMOJIS, post_id=stored.id, emoji=emoji) >= MAX_EMOJIS:
            raise Refused(
                f"Post {number} has {MAX_EMOJIS} different reactions. Use one of them.",
                number=number,
            )
    changed = (
        tx.run(sql.UNREACT, post_id=stored.id, emoji=emoji, member=reader)
        if remove
        else tx.run(sql.REACT, post_id=stored.id, emoji=emoji, member=reader, now=tx.now)
    )
    if changed:
        tx.emit(
            "post",
            "unreact" if remove else "react",
            stored.id,
            project_id=target.project_id,
            data={"member": reader, "emoji": emoji},
        )
    (updated,) = _with_reactions(tx, [stored])
    return updated


def _post(
    tx: Tx, group: Group, text: str, *, author: str, reply_to: int | None, key: str | None
) -> Post:
    check_open(group)
    ops.require_member(tx, group, check_member(author))
    body = check_text(text, "The post")
    post_key = check_optional_text(key, "The key", max_bytes=MAX_NAME)
    # Serialized: letters must have the order of the post numbers.
    tx.serialize(f"posts:{group.id}")
    if post_key is not None:
        before = tx.first(sql.BY_KEY, group_id=group.id, author=author, key=post_key)
        if before is not None:
            return _with_reactions(tx, [before])[0]
    if reply_to is not None and not 1 <= check_int(reply_to, "The reply") <= group.posts:
        raise Invalid(f"{group.name} has no post {reply_to} to reply to.", reply_to=reply_to)
    cause = chains.get_for_caller(tx, author)
    chains.check_hop_limit(tx, cause)
    id = tx.new_id("pst")
    post = {
        "id": id,
        "group_id": group.id,
        "author": author,
        "text": body,
        "reply_to": reply_to,
        "key": post_key,
        "now": tx.now,
    }
    row = sql.POST.append(tx, post)
    if row is None:  # archived concurrently
        check_open(ops.get(tx, group.id))
        raise sql.GROUPS.not_found(group.id)
    number, at = row
    redacted = str(post["text"])  # redacted by the insert
    new_post = Post(id, group.id, number, author, redacted, reply_to, post_key, at, {})
    tx.run(sql.MARK_OWN_READ, group_id=group.id, member=author, number=new_post.number)
    tx.emit("post", "post", id, project_id=group.project_id, data={"group": group.id, "by": author})
    _put_letters(tx, group, new_post, cause)
    return new_post


def _put_letters(tx: Tx, group: Group, new_post: Post, cause: Chain | None) -> None:
    body = GroupPost(
        group=group.id,
        name=group.name,
        number=new_post.number,
        author=new_post.author,
        text=new_post.text,
        reply_to=new_post.reply_to,
    )
    members = tx.all(sql.MEMBERS.query, group_id=group.id, after="", limit=LAST_NUMBER)
    mail.broadcast(
        tx,
        [other.name for other in members if other.name != new_post.author],
        body,
        key=build_letter_key(group.id, new_post.number),
        cause=cause,
        # Only a direct message reports failed delivery; a group would report every absent member.
        sender=new_post.author if group.kind is GroupKind.DIRECT else None,
        due_at=new_post.at,  # grows with the post number, unlike the time of a transaction
        expires_at=new_post.at + LETTER_MS,
        project=group.project_id,
    )


def _with_reactions(tx: Tx, posts: Sequence[StoredPost]) -> list[Post]:
    reactions: dict[str, dict[str, list[str]]] = {}
    if posts:
        ids = encode_json([post.id for post in posts], "The posts")
        rows = tx.all(sql.REACTIONS, keys_=ids)
        for reaction in sorted(rows, key=lambda row: (row.emoji, row.at, row.member)):
            emojis = reactions.setdefault(reaction.post_id, {})
            emojis.setdefault(reaction.emoji, []).append(reaction.member)
    return [
        Post(**msgspec.structs.asdict(post), reactions=reactions.get(post.id, {})) for post in posts
    ]
