"""The CLI's own record of a terminal conversation: what was said and used stands only there."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from corral.adapters.providers.facts import Fact, Said
from corral.keeper.voice import Recorder

if TYPE_CHECKING:
    from corral.adapters.providers.provider import Provider

# Providers whose transcripts can be read.
READABLE = frozenset({"claude", "codex"})


class Transcript:
    """One conversation's record, from where it stood when the run began."""

    def __init__(self, provider: "Provider", home: Path, session: str, prompt: str | None) -> None:
        self._provider = provider
        self._home = home
        self._session = session
        self._prompt = prompt
        path = self._path()
        self._offset = path.stat().st_size if path is not None else 0

    def take_into(self, recorder: Recorder) -> None:
        """Keep what came since; the prompt itself is in the session already."""
        path = self._path()
        if path is None:
            return
        reader = import_module(f"corral.adapters.transcripts.{self._provider.name}")
        facts: list[Fact] = [item.fact for item in reader.read(path, offset=self._offset)]
        recorder.take([fact for fact in facts if not self._is_prompt(fact)])
        recorder.finish()

    def _is_prompt(self, fact: Fact) -> bool:
        if not isinstance(fact, Said) or fact.role != "user" or self._prompt is None:
            return False
        if fact.content.strip() != self._prompt.strip():
            return False
        self._prompt = None  # only the first time
        return True

    def _path(self) -> Path | None:
        return self._provider.transcript(self._home, self._session)


def transcript_of(
    provider: "Provider", home: Path, session: str | None, prompt: str | None
) -> Transcript | None:
    """The record of a terminal conversation whose id is known; None where it cannot be read."""
    if session is None or provider.name not in READABLE:
        return None
    return Transcript(provider, home, session, prompt)
