"""Operations of `store.host_requests`."""

from corral.api.operation import Resource, read, write
from corral.domain.host_requests import ops


class HostRequests(Resource):
    """Requests of agents to the host, such as for a permission or a secret."""

    noun = "request"

    ask = write(ops.ask, repeatable_by="key", durable=True)
    get = read(ops.get)
    list = read(ops.list_requests)
    withdraw = write(ops.withdraw)
    complete_secret_requests = write(ops.complete_secret_requests, repeatable=True)
