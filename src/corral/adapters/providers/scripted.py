"""The bundled scripted agent, for the demo and for tests: it does what its prompt says."""

import sys

from corral.adapters.providers.claude import ClaudeParser
from corral.adapters.providers.provider import Ask, Cli, Start, session_of, started, told
from corral.kernel.clock import Clock


class Scripted(Cli):
    name = "scripted"
    program = sys.executable
    quit_command = "exit"
    chooses_session = True
    acp_args = ("-P", "-m", "corral.demo.agent", "--acp")

    def start(self, ask: Ask, program: str | None = None) -> Start:
        # -P: nothing is loaded from the folder in which it works.
        args = [program or self.program, "-P", "-m", "corral.demo.agent"]
        session = session_of(ask)
        args += ["--interactive" if ask.interactive else "--json"]
        if ask.latest:
            args += ["--continue"]
        elif session:
            args += ["--resume" if ask.resume else "--session-id", session]
        if ask.model:
            args += ["--model", ask.model]
        args += ask.extra
        prompt, stdin = told(ask, instructions=True)
        args += ["--", prompt] if prompt else []
        return started(args, ask, stdin, session)

    def version(self, program: str) -> str | None:
        """It comes with Corral, so it is Corral's; None where that is not installed."""
        from importlib import metadata

        try:
            return metadata.version("corral")
        except metadata.PackageNotFoundError:
            return None

    def parser(self, clock: Clock | None = None) -> ClaudeParser:
        return ClaudeParser(clock)


PROVIDER = Scripted()
