"""`corral group`: chat in groups of agents and people."""

import sys
from collections.abc import Callable
from typing import Any

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.parameters import read_body
from corral.cli.render import format_age

COLUMNS = [
    Column("ID", lambda group: group.id),
    Column("NAME", lambda group: group.name),
    Column("KIND", lambda group: group.kind),
    Column("STATE", lambda group: group.state, is_state=True),
    Column("POSTS", lambda group: group.posts),
    Column("LAST", lambda group: format_age(group.updated_at)),
]
UNREAD = [
    Column("ID", lambda group: group.group_id),
    Column("NAME", lambda group: group.name),
    Column("UNREAD", lambda group: group.unread),
    Column("POSTS", lambda group: group.posts),
]
POSTS = [
    Column("NUMBER", lambda post: post.number),
    Column("AUTHOR", lambda post: post.author),
    Column("AT", lambda post: format_age(post.at)),
    Column("CONTENT", lambda post: post.text, shrink="truncate"),
    Column(
        "REACTIONS",
        lambda post: " ".join(
            f"{emoji}{len(members)}" for emoji, members in post.reactions.items()
        ),
    ),
]
MEMBERS = [
    Column("MEMBER", lambda member: member.name),
    Column("ROLE", lambda member: member.role),
    Column("READ", lambda member: member.read_number),
    Column("JOINED", lambda member: format_age(member.joined_at)),
]


def project_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--project`, which selects one of several groups with the same name."""
    help = "Project of the group, if several projects have a group with this name."
    return click.option("--project", metavar="ID|DIR", help=help)(function)


key_option = click.option("--key", help="Idempotency key: a repeated key returns the same post.")


@click.group("group", cls=CommandGroup, help="Chat in groups of agents and people.")
def command() -> None:
    pass


@command.command(examples=["corral group create build agent:ada agent:bob user:mia"])
@click.argument("name")
@click.argument("members", nargs=-1)
@click.option(
    "--role",
    "roles",
    multiple=True,
    help="Role whose agents join the group automatically. Repeatable.",
)
@click.option("--project", metavar="ID|DIR", help="Project of the group.")
@pass_app
def create(
    app: App, name: str, members: tuple[str, ...], roles: tuple[str, ...], project: str | None
) -> None:
    """Create the group NAME with you and MEMBERS, each agent:NAME or user:NAME."""
    group = app.store.groups.create(
        name, members=list(members), roles=list(roles), project=app.project_id(project)
    )
    app.report(f"Created group {group.name} ({group.id}).", group)


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Include archived groups.")
@click.option("--mine", is_flag=True, help="List your groups with the number of unread posts.")
@click.option("--project", metavar="ID|DIR", help="Only list groups of this project.")
@paging_options
@pass_app
def list_(
    app: App, all_: bool, mine: bool, project: str | None, after: str | None, limit: int
) -> None:
    """List groups, newest first."""
    if mine:
        unread = app.store.groups.unread(after=after, limit=limit)
        app.show_page(unread, UNREAD, empty="You are not a member of any group.")
        return
    page = app.store.groups.list(
        project=app.project_id(project), all=all_, after=after, limit=limit
    )
    app.show_page(page, COLUMNS, empty="No groups. Create one with `corral group create`.")


@command.command()
@click.argument("group")
@project_option
@paging_options
@pass_app
def members(app: App, group: str, project: str | None, after: str | None, limit: int) -> None:
    """List the members of GROUP, with the last post that each has read."""
    page = app.store.groups.members(
        group, project=app.project_id(project), after=after, limit=limit
    )
    app.show_page(page, MEMBERS, empty="The group has no members.")


@command.command()
@click.argument("group")
@click.argument("member", required=False)
@project_option
@pass_app
def join(app: App, group: str, member: str | None, project: str | None) -> None:
    """Join GROUP, or add MEMBER to it."""
    joined = app.store.groups.join(group, member=member, project=app.project_id(project))
    app.report(f"{joined.name} joined {group}.", joined)


@command.command()
@click.argument("group")
@click.argument("member", required=False)
@project_option
@pass_app
def leave(app: App, group: str, member: str | None, project: str | None) -> None:
    """Leave GROUP, or remove MEMBER from it."""
    left = app.store.groups.leave(group, member=member, project=app.project_id(project))
    app.report(f"{left.name} left {group}.", left)


@command.command(examples=['corral group post build "The build is green again."'])
@click.argument("group")
@click.argument("text")
@click.option("--reply-to", type=int, metavar="NUMBER", help="Post to reply to.")
@key_option
@project_option
@pass_app
def post(
    app: App, group: str, text: str, reply_to: int | None, key: str | None, project: str | None
) -> None:
    """Post TEXT (or @FILE) to GROUP."""
    post = app.store.groups.post(
        group,
        read_body(text, False),
        reply_to=reply_to,
        key=key,
        project=app.project_id(project),
    )
    app.report(f"Posted {post.number} to {group}.", post)


@command.command()
@click.argument("to")
@click.argument("text")
@key_option
@pass_app
def send(app: App, to: str, text: str, key: str | None) -> None:
    """Send TEXT (or @FILE) as a direct message to agent:NAME or user:NAME."""
    post = app.store.groups.send(to, read_body(text, False), key=key)
    app.report(f"Sent to {to} ({post.group_id}).", post)


@command.command()
@click.argument("text")
@click.option("--project", metavar="ID|DIR", help="Project that the message is about.")
@key_option
@pass_app
def broadcast(app: App, text: str, project: str | None, key: str | None) -> None:
    """Send TEXT (or @FILE) to all agents."""
    post = app.store.groups.broadcast(
        read_body(text, False), project=app.project_id(project), key=key
    )
    app.report(f"Sent post {post.number} to all agents.", post)


@command.command()
@click.argument("group")
@click.option(
    "--all",
    "all_",
    is_flag=True,
    help="Show all posts, oldest first, without marking them as read.",
)
@click.option("--newest", is_flag=True, help="Show the newest first, without marking them as read.")
@project_option
@paging_options
@pass_app
def read(
    app: App,
    group: str,
    all_: bool,
    newest: bool,
    project: str | None,
    after: str | None,
    limit: int,
) -> None:
    """Show your unread posts in GROUP, and mark them as read."""

    id = app.store.groups.get(group, project=app.project_id(project)).id
    reader = None if all_ or newest else app.caller.actor
    page = app.store.groups.read(id, member=reader, newest=newest, after=after, limit=limit)
    app.show_page(page, POSTS, empty="No unread posts." if reader else "No posts.")
    sys.stdout.flush()  # mark posts as read only after they are printed
    if reader and page.items:
        app.store.groups.mark(id, page.items[-1].number)


@command.command()
@click.argument("group")
@click.argument("number", type=int)
@click.argument("emoji")
@click.option("--remove", is_flag=True, help="Remove the reaction.")
@project_option
@pass_app
def react(app: App, group: str, number: int, emoji: str, remove: bool, project: str | None) -> None:
    """React to post NUMBER of GROUP with SIGN: an emoji or a short word."""
    post = app.store.groups.react(
        group, number, emoji, remove=remove, project=app.project_id(project)
    )
    app.report(f"Post {number} has {len(post.reactions.get(emoji, []))} {emoji}.", post)


@command.command()
@click.argument("group")
@project_option
@pass_app
def archive(app: App, group: str, project: str | None) -> None:
    """Archive GROUP; its posts can still be read by the group's id."""
    archived = app.store.groups.archive(group, project=app.project_id(project))
    app.report(f"Archived group {archived.name} ({archived.id}).", archived)
