"""Groups and direct messages, as a chat."""

from starlette.responses import Response

from corral.web.request import Visit

POSTS = 50
MEMBERS = 200
AGENTS = 200
SIGNS = ("\N{THUMBS UP SIGN}", "\N{WHITE HEAVY CHECK MARK}", "\N{EYES}", "\N{WARNING SIGN}")


def show_all(visit: Visit) -> Response:
    store = visit.store
    every = visit.asked("all") is not None
    page = store.groups.list(all=every, after=visit.asked("after"))
    unread = {each.group_id: each.unread for each in store.groups.unread(member=visit.person).items}
    return visit.show(
        "groups.html",
        page=page,
        unread=unread,
        every=every,
        agents=store.agents.list(limit=AGENTS).items if visit.may_act else [],
        names=visit.names(group.project_id for group in page.items),
    )


def show_one(visit: Visit) -> Response:
    """The latest posts; `before` leads further back."""
    store = visit.store
    group = store.groups.get(visit.path("id"))
    before = visit.asked("before")
    page = store.groups.read(group.id, newest=True, after=before, limit=POSTS)
    members = store.groups.members(group.id, limit=MEMBERS)
    mine = next((each for each in members.items if each.member == visit.person), None)
    return visit.show(
        "group.html",
        group=group,
        posts=page.items[::-1],
        earlier=page.next,
        back=before is not None,
        members=members,
        mine=mine,
        person=visit.person,
        signs=SIGNS,
        names=visit.names([group.project_id]),
    )
