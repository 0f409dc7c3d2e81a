"""Values of secrets: resolve references, save new values, and register them for redaction.

The store has references only. Every value that this process reads is registered first, so that it
is redacted from everything that the process writes.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from corral import config
from corral.domain.settings import ops
from corral.domain.settings.model import Secret

if TYPE_CHECKING:
    from corral.db.database import Database


def resolve_secret(database: "Database", name: str) -> str:
    """Return the current value of a named secret. Do not print, log or store it."""
    secret = database.read(lambda tx: ops.get_secret(tx, name), mode="one")
    return _resolve(database, secret.reference)


def resolve_reference(database: "Database", reference: str) -> str:
    """Return the value of `env:…`, `file:…`, `cmd:…`, `keyring:…`, or of a named secret."""
    if ":" in reference:
        return _resolve(database, reference)
    return resolve_secret(database, reference)


def _resolve(database: "Database", reference: str) -> str:
    from corral.adapters import secrets

    value = secrets.resolve_secret(reference)
    register_for_redaction(database, value)
    return value


def save_secret_value(
    database: "Database", name: str, value: str, *, where: Literal["file", "keyring"]
) -> Secret:
    """Save a value in a private file or in the system key ring, and store a reference to it."""
    from corral.adapters import secrets

    ops.check_secret_name(name)
    register_for_redaction(database, value)
    if where == "keyring":
        reference = secrets.store_in_keyring(name, value)
    else:
        reference = secrets.store_in_file(secrets_folder(), name, value)
    return database.write(lambda tx: ops.set_secret(tx, name, reference), repeatable=True)


def secrets_folder() -> Path:
    """Return the folder of the secret files in this home."""
    return config.home() / "secrets"


def register_for_redaction(database: "Database", value: str) -> None:
    """Redact a value from everything that this process writes from now on."""
    if database.redaction is not None:
        database.redaction.add_known_values(value)


def list_initial_secret_values() -> list[str]:
    """Return the secrets that a process knows when it opens a store.

    These are the secrets of its run (`CORRAL_SECRETS` lists their variables) and the secret files
    of this home.
    """
    names = os.environ.get("CORRAL_SECRETS", "").split(",")
    values = [os.environ[name] for name in names if os.environ.get(name)]
    folder = secrets_folder()
    # isdir() is False, without an error, for a home that this process may not read.
    if not os.path.isdir(folder):
        return values
    from corral.adapters import secrets

    return values + secrets.read_all_values(folder)
