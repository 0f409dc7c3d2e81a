"""Drive an `AcpClient` against a real agent process, like a supervisor: one loop, no threads."""

import contextlib
import os
import select
import subprocess
import time
from types import TracebackType
from typing import Any

from corral.adapters.providers.acp import AcpClient, PromptResult
from corral.adapters.providers.facts import PermissionFact, ProviderFact


class AcpRun:
    def __init__(
        self, args: list[str], *, cwd: str, env: dict[str, str] | None = None, **options: Any
    ) -> None:
        self.process = subprocess.Popen(
            args,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdin
        assert self.process.stdout
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.talk = AcpClient(lambda data: self._write(data), cwd=cwd, **options)
        self.facts: list[ProviderFact | PromptResult] = []
        self.talk.start()

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._in, data) :]

    def wait_until(self, *kinds: type, seconds: float = 60) -> Any:
        """Feed output until a fact of one of the kinds arrives, and return that fact."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ready, _, _ = select.select([self._out], [], [], 0.2)
            if not ready:
                continue
            data = os.read(self._out, 65_536)
            new = self.talk.feed(data) if data else self.talk.close()
            self.facts += new
            value = next((fact for fact in new if isinstance(fact, kinds)), None)
            if value is not None:
                return value
            if not data:
                break
        result = self.facts[-5:]
        raise AssertionError(f"no {kinds} came; the last: {result}; {self.errors()}")

    def done(self, seconds: float = 60) -> PromptResult:
        result: PromptResult = self.wait_until(PromptResult, seconds=seconds)
        return result

    def wait_for_permission_request(self, seconds: float = 60) -> PermissionFact:
        request: PermissionFact = self.wait_until(PermissionFact, seconds=seconds)
        return request

    def errors(self) -> str:
        if self.process.poll() is None or self.process.stderr is None:
            return ""
        return self.process.stderr.read()[-2_000:].decode(errors="replace")

    def end(self) -> None:
        """End the agent gracefully: some agents write their transcript only then."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 15)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.__exit__(None, None, None)

    def __enter__(self) -> "AcpRun":
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()
