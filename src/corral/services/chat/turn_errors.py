"""Errors of single chat turns, which must not block the others."""

import logging

from corral.kernel.errors import CorralError

log = logging.getLogger("corral")


def describe_error(error: Exception) -> str:
    """Return the message of an error; log the traceback of an unexpected one."""
    if isinstance(error, CorralError):
        return error.message
    log.error("unexpected error in a turn", exc_info=error)
    return f"{type(error).__name__}: {error}"
