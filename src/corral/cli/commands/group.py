import sys
from collections.abc import Callable
from typing import Any

import click

from corral.cli.app import App, Noun, paging, pass_app, read_body
from corral.cli.render import ago

COLUMNS = [
    ("ID", lambda group: group.id),
    ("NAME", lambda group: group.name),
    ("KIND", lambda group: group.kind),
    ("STATE", lambda group: group.state),
    ("POSTS", lambda group: group.posts),
    ("LAST", lambda group: ago(group.updated_at)),
]
UNREAD = [
    ("ID", lambda group: group.group_id),
    ("NAME", lambda group: group.name),
    ("UNREAD", lambda group: group.unread),
    ("POSTS", lambda group: group.posts),
]
POSTS = [
    ("NUMBER", lambda post: post.number),
    ("AUTHOR", lambda post: post.author),
    ("AT", lambda post: ago(post.at)),
    ("CONTENT", lambda post: post.text),
    ("SIGNS", lambda post: " ".join(f"{s}{len(who)}" for s, who in post.reactions.items())),
]
MEMBERS = [
    ("MEMBER", lambda member: member.member),
    ("ROLE", lambda member: member.role),
    ("READ", lambda member: member.read_number),
    ("JOINED", lambda member: ago(member.joined_at)),
]


def in_project(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where several projects have a group of that name."""
    help = "Its project, where several have one of that name."
    return click.option("--project", metavar="ID|DIR", help=help)(function)


@click.group("group", cls=Noun, help="Chats of agents and people.")
def command() -> None:
    pass


@command.command()
@click.argument("name")
@click.argument("members", nargs=-1)
@click.option("--role", "roles", multiple=True, help="Agents of this role join by themselves.")
@click.option("--project", metavar="ID|DIR", help="The project that it belongs to.")
@pass_app
def create(
    app: App, name: str, members: tuple[str, ...], roles: tuple[str, ...], project: str | None
) -> None:
    """Make the group NAME of you and MEMBERS, each agent:NAME or user:NAME."""
    made = app.store.groups.create(
        name, members=list(members), roles=list(roles), project=app.project_id(project)
    )
    app.say(f"{made.name} is made ({made.id}).", made)


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Also archived ones.")
@click.option("--mine", is_flag=True, help="Those that you are in, with what you have not read.")
@click.option("--project", metavar="ID|DIR", help="Only of this project.")
@paging
@pass_app
def list_(
    app: App, all_: bool, mine: bool, project: str | None, after: str | None, limit: int
) -> None:
    """Groups, newest first."""
    if mine:
        unread = app.store.groups.unread(after=after, limit=limit)
        app.show_page(unread, UNREAD, empty="You are in no group.")
        return
    page = app.store.groups.list(
        project=app.project_id(project), all=all_, after=after, limit=limit
    )
    app.show_page(page, COLUMNS, empty="There is no group; `corral group create` makes one.")


@command.command()
@click.argument("group")
@in_project
@paging
@pass_app
def members(app: App, group: str, project: str | None, after: str | None, limit: int) -> None:
    """Who is in GROUP, and how far each has read."""
    page = app.store.groups.members(
        group, project=app.project_id(project), after=after, limit=limit
    )
    app.show_page(page, MEMBERS, empty="Nobody is in it.")


@command.command()
@click.argument("group")
@click.argument("member", required=False)
@in_project
@pass_app
def join(app: App, group: str, member: str | None, project: str | None) -> None:
    """Come into GROUP, or bring MEMBER in."""
    joined = app.store.groups.join(group, member=member, project=app.project_id(project))
    app.say(f"{joined.member} is in {group}.", joined)


@command.command()
@click.argument("group")
@click.argument("member", required=False)
@in_project
@pass_app
def leave(app: App, group: str, member: str | None, project: str | None) -> None:
    """Go out of GROUP, or take MEMBER out."""
    left = app.store.groups.leave(group, member=member, project=app.project_id(project))
    app.say(f"{left.member} is not in {group} any more.", left)


@command.command()
@click.argument("group")
@click.argument("text")
@click.option("--reply-to", type=int, metavar="NUMBER", help="The post that it answers.")
@click.option("--key", help="The same key is the same post.")
@in_project
@pass_app
def post(
    app: App, group: str, text: str, reply_to: int | None, key: str | None, project: str | None
) -> None:
    """Say TEXT (or @FILE) in GROUP."""
    made = app.store.groups.post(
        group,
        read_body(text, False),
        reply_to=reply_to,
        key=key,
        project=app.project_id(project),
    )
    app.say(f"Post {made.number} of {group}.", made)


@command.command()
@click.argument("to")
@click.argument("text")
@click.option("--key", help="The same key is the same message.")
@pass_app
def send(app: App, to: str, text: str, key: str | None) -> None:
    """Say TEXT (or @FILE) to agent:NAME or user:NAME alone."""
    made = app.store.groups.send(to, read_body(text, False), key=key)
    app.say(f"{to} gets it; the two of you are {made.group_id}.", made)


@command.command()
@click.argument("text")
@click.option("--project", metavar="ID|DIR", help="The project that it is about.")
@click.option("--key", help="The same key is the same message.")
@pass_app
def broadcast(app: App, text: str, project: str | None, key: str | None) -> None:
    """Say TEXT (or @FILE) to all agents."""
    made = app.store.groups.broadcast(
        read_body(text, False), project=app.project_id(project), key=key
    )
    app.say(f"Post {made.number} to everyone.", made)


@command.command()
@click.argument("group")
@click.option("--all", "all_", is_flag=True, help="From the beginning; nothing is marked as read.")
@click.option("--newest", is_flag=True, help="Newest first; nothing is marked as read.")
@in_project
@paging
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
    """What you have not read yet in GROUP; it is marked as read when it is printed."""
    from corral import config

    found = app.store.groups.get(group, project=app.project_id(project))
    mine = None if all_ or newest else config.actor()
    page = app.store.groups.read(found.id, member=mine, newest=newest, after=after, limit=limit)
    app.show_page(page, POSTS, empty="There is nothing new." if mine else "Nothing was said yet.")
    sys.stdout.flush()  # read only when it is out
    if mine and page.items:
        app.store.groups.mark(found.id, page.items[-1].number)


@command.command()
@click.argument("group")
@click.argument("number", type=int)
@click.argument("sign")
@click.option("--remove", is_flag=True, help="Take it back.")
@in_project
@pass_app
def react(app: App, group: str, number: int, sign: str, remove: bool, project: str | None) -> None:
    """Give post NUMBER of GROUP a SIGN: an emoji, or a short word."""
    post = app.store.groups.react(
        group, number, sign, remove=remove, project=app.project_id(project)
    )
    app.say(f"Post {number} has {len(post.reactions.get(sign, []))} {sign}.", post)


@command.command()
@click.argument("group")
@in_project
@pass_app
def archive(app: App, group: str, project: str | None) -> None:
    """Close GROUP; it can still be read by its id."""
    archived = app.store.groups.archive(group, project=app.project_id(project))
    app.say(f"{archived.name} is archived ({archived.id}).", archived)
