"""Groups and direct messages."""

from starlette.responses import Response

from corral.web.request import PageRequest

MAX_POSTS = 50
MAX_MEMBERS = 200
MAX_AGENTS = 200
REACTIONS = ("\N{THUMBS UP SIGN}", "\N{WHITE HEAVY CHECK MARK}", "\N{EYES}", "\N{WARNING SIGN}")


def show_all(request: PageRequest) -> Response:
    store = request.store
    every = request.query("all") is not None
    page = store.groups.list(all=every, after=request.query("after"))
    unread = {
        entry.group_id: entry.unread for entry in store.groups.unread(member=request.user).items
    }
    return request.render(
        "groups.html",
        page=page,
        unread=unread,
        every=every,
        agents=store.agents.list(limit=MAX_AGENTS).items if request.can_write else [],
        names=request.names(group.project_id for group in page.items),
    )


def show_one(request: PageRequest) -> Response:
    """Show the latest posts, or those before the cursor `before`."""
    store = request.store
    group = store.groups.get(request.path_param("id"))
    before = request.query("before")
    page = store.groups.read(group.id, newest=True, after=before, limit=MAX_POSTS)
    members = store.groups.members(group.id, limit=MAX_MEMBERS)
    membership = next((member for member in members.items if member.name == request.user), None)
    return request.render(
        "group.html",
        group=group,
        posts=page.items[::-1],
        earlier=page.next,
        back=before is not None,
        members=members,
        membership=membership,
        user=request.user,
        reactions=REACTIONS,
        names=request.names([group.project_id]),
    )
