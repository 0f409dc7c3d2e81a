"""Any command: the prompt is on its standard input and in CORRAL_PROMPT."""

from corral.adapters.providers.facts import Fact, Used
from corral.adapters.providers.provider import MAX_ARGUMENT, Ask, Cli, Start, session_of, words
from corral.kernel.clock import Clock
from corral.kernel.errors import Invalid


class Plain(Cli):
    name = "plain"
    program = ""

    def start(self, ask: Ask, program: str | None = None) -> Start:
        """`program` and the user's own arguments, as they are; nothing is added to them."""
        if not program:
            raise Invalid("Give the command to run.", field="program")
        prompt = words(ask, instructions=True)
        env = {}
        if prompt is not None and len(prompt.encode(errors="replace")) <= MAX_ARGUMENT:
            env["CORRAL_PROMPT"] = prompt
        return Start([program, *ask.extra], stdin=prompt, env=env)

    def acp(self, ask: Ask, program: str | None = None) -> Start | None:
        """The command as it is, for one who knows that it speaks the protocol."""
        start = self.start(ask, program)
        return Start(start.args, stdin=start.stdin, session=session_of(ask) if ask.resume else None)

    def version(self, program: str) -> str | None:
        """Nobody knows what a stranger does when it is asked for its version."""
        return None

    def parser(self, clock: Clock | None = None) -> "PlainParser":
        return PlainParser()


PROVIDER = Plain()


class PlainParser:
    def feed(self, line: bytes) -> list[Fact]:
        return []

    def pending(self) -> list[Used]:
        return []

    def close(self) -> list[Fact]:
        return []
