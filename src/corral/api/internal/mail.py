"""Operations of `store.internal.mail`."""

from corral.api.operation import Resource, write
from corral.domain.mail import ops


class InternalMail(Resource):
    """Expiry of letters, for the janitor and the scheduler."""

    noun = "mail"

    expire_due = write(ops.expire_due, repeatable=True)
