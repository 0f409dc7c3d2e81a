"""Any other command. The prompt is on standard input and in the variable CORRAL_PROMPT."""

from corral.adapters.providers.facts import ProviderFact, UsageFact
from corral.adapters.providers.provider import (
    MAX_ARGUMENT_BYTES,
    CliProvider,
    LaunchCommand,
    LaunchRequest,
    compose_prompt,
    validate_session_id,
)
from corral.kernel.clock import Clock
from corral.kernel.errors import Invalid


class PlainProvider(CliProvider):
    """A command that Corral knows nothing about; its output is not parsed."""

    name = "plain"
    program = ""

    def build_command(self, request: LaunchRequest, program: str | None = None) -> LaunchCommand:
        """Return `program` with the user's own arguments, unchanged."""
        if not program:
            raise Invalid("No command to run. Give the program.", field="program")
        prompt = compose_prompt(request, instructions=True)
        env = {}
        if prompt is not None and len(prompt.encode(errors="replace")) <= MAX_ARGUMENT_BYTES:
            env["CORRAL_PROMPT"] = prompt
        return LaunchCommand([program, *request.extra], stdin=prompt, env=env)

    def build_acp_command(
        self, request: LaunchRequest, program: str | None = None
    ) -> LaunchCommand | None:
        """Return the unchanged command: the user asserts that it implements the protocol."""
        start = self.build_command(request, program)
        return LaunchCommand(
            start.args,
            stdin=start.stdin,
            session=validate_session_id(request) if request.resume else None,
        )

    def probe_version(self, program: str) -> str | None:
        """Return None: an unknown program might do anything when run with `--version`."""
        return None

    def create_parser(self, clock: Clock | None = None) -> "PlainParser":
        return PlainParser()


PROVIDER = PlainProvider()


class PlainParser:
    """A parser that emits no facts."""

    def feed(self, line: bytes) -> list[ProviderFact]:
        return []

    def pending(self) -> list[UsageFact]:
        return []

    def close(self) -> list[ProviderFact]:
        return []
