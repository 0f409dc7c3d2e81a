"""Saying something in a group, reading it, and saying what one thinks of it."""

from collections.abc import Sequence

import msgspec

from corral.db.tx import Tx
from corral.domain.groups import ops, sql
from corral.domain.groups.model import (
    Group,
    Kind,
    Member,
    Post,
    Said,
    check_member,
    check_open,
    letter_key,
)
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import Chain
from corral.kernel.clock import DAY
from corral.kernel.errors import Invalid, NotFound, Refused
from corral.kernel.pagination import LAST_NUMBER, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, check_int, clean_text, encode_json

LETTER_MS = 30 * DAY
"""How long a member that is away finds a post in its mailbox; in the group it stays longer."""
MAX_SIGN = 64
MAX_SIGNS = 50


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
    """Say something in a group that one is in; every other member gets it as a letter, in order.
    Secrets are taken out.

    The same `key` of the same author gives back the first post. A post of an agent continues the
    chain of letters that led to it; Refused beyond `mail.max_hops`.
    """
    found = ops.get(tx, group, project=project)
    return _post(tx, found, text, author=author or tx.actor, reply_to=reply_to, key=key)


def send(tx: Tx, to: str, text: str, *, author: str | None = None, key: str | None = None) -> Post:
    """Say something to one agent or person alone, in the group of these two."""
    speaker = author or tx.actor
    return _post(tx, ops.direct(tx, speaker, to), text, author=speaker, reply_to=None, key=key)


def broadcast(
    tx: Tx,
    text: str,
    *,
    author: str | None = None,
    project: str | None = None,
    key: str | None = None,
) -> Post:
    """Say something to all agents; whoever says it joins them."""
    speaker = check_member(author or tx.actor)
    group = ops.everyone(tx, project=project)
    ops.join(tx, group.id, member=speaker)
    return _post(tx, group, text, author=speaker, reply_to=None, key=key)


def read(
    tx: Tx,
    group: str,
    *,
    member: str | None = None,
    newest: bool = False,
    project: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[Post]:
    """What was said, oldest first; of a `member`, what it has not read yet. Or newest first.

    Reading moves no cursor: `mark` does, when what was read has arrived.
    """
    found = ops.get(tx, group, project=project)
    cursor = 0
    if member is not None:
        cursor = ops.require_member(tx, found, check_member(member)).read_number
    if newest:
        (before,) = decode_cursor(after, LAST_NUMBER)
        rows = tx.all(
            sql.READ_NEWEST, group_id=found.id, before=before, limit=check_limit(limit) + 1
        )
    else:
        (behind,) = decode_cursor(after, cursor)
        rows = tx.all(sql.READ, group_id=found.id, after=behind, limit=check_limit(limit) + 1)
    page = page_of(rows, limit, lambda said: (said.number,))
    return Page(_with_reactions(tx, page.items), page.next)


def mark(
    tx: Tx, group: str, number: int, *, member: str | None = None, project: str | None = None
) -> Member:
    """Say that a member has read all posts up to this number; their letters are done, too.

    A cursor never goes back, so saying it twice, or late, does no harm.
    """
    found = ops.get(tx, group, project=project)
    who = check_member(member or tx.actor)
    known = ops.require_member(tx, found, who)
    if not 0 <= check_int(number, "The number") <= found.posts:
        raise Invalid(f"{found.name} has posts 1 to {found.posts}, not {number}.", number=number)
    marked = tx.one(sql.MARK, group_id=found.id, member=who, number=number)
    if marked is None:
        return known
    ops.close_letters(tx, found, who, behind=known.read_number, upto=number)
    tx.note(
        "group",
        "mark",
        found.id,
        project_id=found.project_id,
        data={"member": who, "number": number},
    )
    return marked


def react(
    tx: Tx,
    group: str,
    number: int,
    sign: str,
    *,
    member: str | None = None,
    remove: bool = False,
    project: str | None = None,
) -> Post:
    """Give a post a sign (an emoji, or a short word), once; or take it back."""
    found = ops.get(tx, group, project=project)
    check_open(found)
    who = check_member(member or tx.actor)
    ops.require_member(tx, found, who)
    clean_text(sign, "The sign", most=MAX_SIGN)
    if any(not c.isprintable() and c != "\u200d" for c in sign) or " " in sign:
        raise Invalid(f"{sign!r} is no sign; give an emoji or a short word.", sign=sign)
    said = tx.one(sql.BY_NUMBER, group_id=found.id, number=check_int(number, "The number"))
    if said is None:
        raise NotFound(
            f"{found.name} has no post {number}; `corral group read {found.name}` shows its posts.",
            group=found.id,
            number=number,
        )
    if not remove:
        # Two that count at the same moment would both find room for one more.
        tx.serialize(f"signs:{said.id}")
        if tx.value(sql.COUNT_SIGNS, post_id=said.id, sign=sign) >= MAX_SIGNS:
            raise Refused(f"Post {number} has {MAX_SIGNS} signs; take one of them.", number=number)
    changed = (
        tx.run(sql.UNREACT, post_id=said.id, sign=sign, member=who)
        if remove
        else tx.run(sql.REACT, post_id=said.id, sign=sign, member=who, now=tx.now)
    )
    if changed:
        tx.note(
            "post",
            "unreact" if remove else "react",
            said.id,
            project_id=found.project_id,
            data={"member": who, "sign": sign},
        )
    (whole,) = _with_reactions(tx, [said])
    return whole


def _post(
    tx: Tx, group: Group, text: str, *, author: str, reply_to: int | None, key: str | None
) -> Post:
    check_open(group)
    ops.require_member(tx, group, check_member(author))
    words = clean_text(text, "The post")
    named = clean_text(key, "The key", most=MAX_NAME) if key else None
    # One at a time: a member's mailbox has the posts in the order of their numbers.
    tx.serialize(f"posts:{group.id}")
    if named is not None:
        before = tx.one(sql.BY_KEY, group_id=group.id, author=author, key=named)
        if before is not None:
            return _with_reactions(tx, [before])[0]
    if reply_to is not None and not 1 <= check_int(reply_to, "The reply") <= group.posts:
        raise Invalid(f"{group.name} has no post {reply_to} to reply to.", reply_to=reply_to)
    cause = chains.of_caller(tx, author)
    chains.check(tx, cause)
    id = tx.new_id("pst")
    post = {
        "id": id,
        "group_id": group.id,
        "author": author,
        "text": words,
        "reply_to": reply_to,
        "key": named,
        "now": tx.now,
    }
    row = sql.POST.append(tx, post)
    if row is None:  # archived this moment
        check_open(ops.get(tx, group.id))
        raise sql.GROUPS.missing(group.id)
    number, at = row
    kept = str(post["text"])  # without secrets
    made = Post(id, group.id, number, author, kept, reply_to, named, at, {})
    tx.run(sql.MARK_OWN, group_id=group.id, member=author, number=made.number)
    tx.note("post", "post", id, project_id=group.project_id, data={"group": group.id, "by": author})
    _tell(tx, group, made, cause)
    return made


def _tell(tx: Tx, group: Group, made: Post, cause: Chain | None) -> None:
    body = {
        "kind": "post",
        "group": group.id,
        "name": group.name,
        "number": made.number,
        "from": made.author,
        "text": made.text,
        "reply_to": made.reply_to,
    }
    members = tx.all(sql.MEMBERS, group_id=group.id, after="", limit=LAST_NUMBER)
    mail.put_all(
        tx,
        [other.member for other in members if other.member != made.author],
        body,
        key=letter_key(group.id, made.number),
        cause=cause,
        # Told when it never arrives; a group would be told of everyone who is away.
        sender=made.author if group.kind is Kind.DIRECT else None,
        due_at=made.at,  # rises with the number, as a transaction's own time may not
        expires_at=made.at + LETTER_MS,
        project=group.project_id,
    )


def _with_reactions(tx: Tx, posts: Sequence[Said]) -> list[Post]:
    given: dict[str, dict[str, list[str]]] = {}
    if posts:
        ids = encode_json([said.id for said in posts], "The posts")
        found = tx.all(sql.REACTIONS, keys_=ids)
        for reaction in sorted(found, key=lambda one: (one.sign, one.at, one.member)):
            signs = given.setdefault(reaction.post_id, {})
            signs.setdefault(reaction.sign, []).append(reaction.member)
    return [
        Post(**msgspec.structs.asdict(said), reactions=given.get(said.id, {})) for said in posts
    ]
