"""Tools: group_post, group_read."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from corral.kernel.errors import NotFound
from corral.mcp.call import ToolArguments, ToolCall, ToolResult, WriteArguments

MAX_POSTS = 100


class GroupPostArguments(WriteArguments, kw_only=True):
    text: Annotated[str, Meta(min_length=1)]
    group: Annotated[
        str | None, Meta(description="Name of the group. Omit it to reach all agents.")
    ] = None
    reply_to: Annotated[int, Meta(ge=1)] | None = None


class GroupPostResult(ToolResult, kw_only=True):
    group: str
    number: int


def post_to_group(call: ToolCall, arguments: GroupPostArguments) -> GroupPostResult | msgspec.Raw:
    """Post to a group that you are a member of, or to all agents. Every member gets it, also
    members that are not running. To reach one agent use send."""

    def to_result(post: Any) -> GroupPostResult:
        return GroupPostResult(
            next_step="Posted. Replies come to your inbox and to group_read.",
            group=post.group_id,
            number=post.number,
        )

    parameters: dict[str, Any] = {"text": arguments.text, "author": call.caller.mailbox}
    if arguments.group is None:
        project = call.caller.project_id
        return call.perform("groups.broadcast", arguments, to_result, project=project, **parameters)
    return call.perform(
        "groups.post",
        arguments,
        to_result,
        group=_find_group(call, arguments.group),
        reply_to=arguments.reply_to,
        **parameters,
    )


def _find_group(call: ToolCall, name: str) -> str:
    """Return the id of a group of the caller's project, else of one without a project.

    Membership is checked by the operation that reads or posts.
    """
    groups = call.store.groups
    try:
        return groups.get(name, project=call.caller.project_id).id
    except NotFound:
        group = groups.get(name)
        if group.project_id is not None:
            raise
        return group.id


class GroupReadArguments(ToolArguments, kw_only=True):
    group: Annotated[str, Meta(description="Name or id of the group.")]
    seen: Annotated[
        int | None,
        Meta(description="Number of the last post you have read: marks it and earlier as read."),
    ] = None
    limit: Annotated[int, Meta(ge=1, le=MAX_POSTS)] = 20


class GroupPostInfo(msgspec.Struct):
    number: int
    author: str
    text: str
    reply_to: int | None
    at: int


class GroupReadResult(ToolResult, kw_only=True):
    posts: list[GroupPostInfo]
    more: bool


def read_group(call: ToolCall, arguments: GroupReadArguments) -> GroupReadResult:
    """Read the unread posts of a group, oldest first. Posts stay unread until you pass the number
    of the last one as seen."""
    member, groups = call.caller.mailbox, call.store.groups
    group = _find_group(call, arguments.group)
    if arguments.seen is not None:
        groups.mark(group, arguments.seen, member=member)
    page = groups.read(group, member=member, limit=arguments.limit)
    step = "There are no unread posts."
    if page.items:
        step = f"After reading, call group_read with seen={page.items[-1].number}."
    return GroupReadResult(
        next_step=step,
        posts=[
            GroupPostInfo(post.number, post.author, post.text, post.reply_to, post.at)
            for post in page.items
        ],
        more=page.next is not None,
    )
