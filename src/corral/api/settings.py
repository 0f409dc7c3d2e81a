"""Operations of `store.settings` and `store.secrets`."""

from typing import Literal

from corral.api.operation import Resource, operation, read, write
from corral.api.policy import USES_SECRETS
from corral.domain.settings import ops
from corral.domain.settings.model import Secret


class Settings(Resource):
    """Settings: values that replace the defaults, for everything, a project or an agent."""

    noun = "setting"

    set = write(ops.set_value, repeatable=True, people_only=True)
    unset = write(ops.unset_value, repeatable=True, people_only=True)
    get = read(ops.get_setting, mode="one", subject="name")
    list = read(ops.list_settings)


class Secrets(Resource):
    """References to secrets. The store never has their values.

    A reference is `env:NAME`, `file:PATH`, `cmd:COMMAND` or `keyring:SERVICE/NAME`. Values are
    resolved when a process starts and redacted from everything that is written.
    """

    noun = "secret"

    set = write(ops.set_secret, repeatable=True, people_only=True)
    get = read(ops.get_secret, mode="one", subject="name")
    list = read(ops.list_secrets, mode="one")
    delete = write(ops.delete_secret, people_only=True)

    @operation(local=USES_SECRETS, people_only=True)
    def resolve(self, name: str) -> str:
        """Return the current value of a named secret, for a process that is about to start.

        Do not print, log or store it. Raises NotFound for an unknown name, and Refused when the
        value cannot be read.
        """
        from corral.services.secrets import resolve_secret

        return resolve_secret(self._database, name)

    @operation(local=USES_SECRETS, people_only=True)
    def resolve_reference(self, reference: str) -> str:
        """Return the value of `env:…`, `file:…`, `cmd:…`, `keyring:…`, or of a named secret."""
        from corral.services.secrets import resolve_reference

        return resolve_reference(self._database, reference)

    @operation(local=USES_SECRETS, people_only=True)
    def save_value(self, name: str, value: str, *, where: Literal["file", "keyring"]) -> Secret:
        """Save a value in a private file or in the system key ring, and store a reference to it."""
        from corral.services.secrets import save_secret_value

        return save_secret_value(self._database, name, value, where=where)
