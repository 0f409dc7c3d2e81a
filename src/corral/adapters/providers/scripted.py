"""The bundled scripted agent, for the demo and for tests. Its prompt contains the script."""

import sys

from corral.adapters.providers.claude import ClaudeParser
from corral.adapters.providers.provider import (
    CliProvider,
    LaunchCommand,
    LaunchRequest,
    compose_command,
    split_prompt,
    validate_session_id,
)
from corral.kernel.clock import Clock


class ScriptedProvider(CliProvider):
    """The bundled scripted agent."""

    name = "scripted"
    program = sys.executable
    quit_command = "exit"
    accepts_session_id = True
    acp_args = ("-P", "-m", "corral.demo.agent", "--acp")

    def build_command(self, request: LaunchRequest, program: str | None = None) -> LaunchCommand:
        # -P: import no module from the working directory.
        args = [program or self.program, "-P", "-m", "corral.demo.agent"]
        session = validate_session_id(request)
        args += ["--interactive" if request.interactive else "--json"]
        if request.latest:
            args += ["--continue"]
        elif session:
            args += ["--resume" if request.resume else "--session-id", session]
        if request.model:
            args += ["--model", request.model]
        args += request.extra
        prompt, stdin = split_prompt(request, instructions=True)
        args += ["--", prompt] if prompt else []
        return compose_command(args, request, stdin, session)

    def probe_version(self, program: str) -> str | None:
        """Return the version of Corral, which bundles the agent; None if it is not installed."""
        from importlib import metadata

        try:
            return metadata.version("corral")
        except metadata.PackageNotFoundError:
            return None

    def create_parser(self, clock: Clock | None = None) -> ClaudeParser:
        return ClaudeParser(clock)


PROVIDER = ScriptedProvider()
