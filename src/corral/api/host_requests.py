"""Operations of `store.host_requests`."""

from corral.api import agent_rules as rules
from corral.api.operation import Resource, read, write
from corral.domain.host_requests import ops


class HostRequests(Resource):
    """Requests of agents to the host, such as for a permission or a secret."""

    noun = "request"
    subjects = ("request",)

    ask = write(
        ops.ask,
        repeatable_by="key",
        durable=True,
        actor=("agent",),
        agent=rules.as_requester,
        objects={"run": "runs", "session": "sessions"},
    )
    get = read(ops.get, agent=rules.only_own_request)
    list = read(ops.list_requests, agent=rules.as_agent)
    withdraw = write(ops.withdraw, agent=rules.only_own_request)
    complete_secret_requests = write(
        ops.complete_secret_requests, repeatable=True, people_only=True
    )
