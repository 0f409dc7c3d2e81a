"""Checks of the environment variables and secrets that a run is given."""

from collections.abc import Mapping

from corral.db.tx import Tx
from corral.domain.settings import ops as settings
from corral.kernel.errors import Invalid, NotFound, Refused


def check_secret_references(tx: Tx, secrets: Mapping[str, str]) -> Mapping[str, str]:
    """Check that each value is a reference. The error omits the value: it may be the secret."""
    for name, reference in secrets.items():
        kind, colon, where = reference.partition(":")
        try:
            known = bool(colon and where.strip() and kind in ("env", "file", "cmd", "keyring"))
            if not known:
                settings.get_secret(tx, reference)
        except (NotFound, Invalid):
            raise Invalid(
                f"The value of --secret {name}= is not a reference. Use env:NAME, file:PATH, "
                "cmd:COMMAND, keyring:SERVICE/NAME, or the name of a `corral secret`.",
                name=name,
                reason="bad_secret_reference",
            ) from None
    return secrets


_SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")


def check_env(env: Mapping[str, str]) -> Mapping[str, str]:
    """Check variables that are given by value. Values are stored, so secrets are refused."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise Invalid(f"Invalid variable name {name!r}: expected --env NAME=VALUE.")
        if any(part in name.upper().split("_") for part in _SECRET_NAMES) and value:
            raise Refused(
                f"{name} looks like a secret, and values of --env are stored. Use "
                f"--secret {name}=env:{name} or another reference.",
                name=name,
            )
    return env
