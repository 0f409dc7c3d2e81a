"""What one run needs to be started: its command line, environment, streams and folder."""

import os
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from corral.adapters import process
from corral.adapters.providers import registry
from corral.adapters.providers.provider import GO_ON, Ask, Start
from corral.adapters.supervisor_process import OWN_VARIABLES
from corral.adapters.transcripts.transcript import READABLE
from corral.config import write_private_file
from corral.domain.runs.model import Launch, Mode, Run
from corral.kernel.clock import SystemClock
from corral.supervisor.agent_io import Log, Recorder, Voice
from corral.supervisor.streams import OUTPUT, Copied, Direct, Streams, Talk, Terminal

if TYPE_CHECKING:
    from corral.adapters.checkouts import Checkout
    from corral.adapters.providers.provider import Provider
    from corral.adapters.sandbox_bridge.schema import Folder
    from corral.api import Corral
    from corral.supervisor.confinement import Confinement

# Options that make an agent CLI, started by the user's own command line, tell in structured lines.
STRUCTURED = frozenset({"stream-json", "--json"})
# Of a prompt, so much says what it is about.
MOST_ABOUT = 8_000


class Told(NamedTuple):
    """What the run's agent is told besides its prompt."""

    model: str | None = None
    instructions: str | None = None
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    tools: bool = False


class Plan:
    """One run's way of being started, the same for each of its attempts."""

    def __init__(
        self,
        store: "Corral",
        run: Run,
        launch: Launch,
        folder: Path,
        *,
        stdin: int | None = None,
        split: bool = False,
        size: tuple[int, int] = (24, 80),
        secret: Callable[[str], str],
    ) -> None:
        self._store = store
        self._run = run
        self._launch = launch
        self.folder = folder
        self._stdin = stdin
        self._split = split
        self._size = size
        self.secrets = {name: secret(reference) for name, reference in launch.secrets.items()}
        self.provider: Provider = registry.find(run.provider)
        self._told = self._what_its_agent_is_told()
        self._is_moved = self._was_elsewhere()
        self._kept_by: dict[str, Any] = {}

    def _was_elsewhere(self) -> bool:
        """Whether another machine had the run: what its provider remembers of the conversation is
        there."""
        run = self._run
        if self._launch.host is not None or not run.attempts or run.session_id is None:
            return False
        return self._store.outputs.get(run.id).host != process.host()

    def start(self, *, resume: bool) -> Start:
        """How this attempt is started; a later one goes on with the conversation of the first."""
        started = self._start(resume=resume)
        if self._launch.is_boxed:
            return self._boxed(started)
        if self.confinement is None:
            return started
        session = self._provider_session() if self._run.session_id else None
        return self.confinement.wrap(started, self._checkout, session)

    def _boxed(self, started: Start) -> Start:
        """The same without network and with nothing in sight, spoken to by the session's files."""
        from corral.domain.runs.spec import BOXED
        from corral.services.chat import sandbox_sync

        run, folder = self._run, self._files
        order = sandbox_sync.order(folder, started, self.provider.name)
        wrapped = sandbox_sync.box(
            [sys.executable, "-P", "-m", sandbox_sync.INSIDE, "run", order],
            folder,
            by=str(self._launch.sandbox).removeprefix(BOXED),
            work=run.cwd,
            store=self._store.address,
            programs=started.args,
            reads=self._setting("gateway.sandbox_reads"),
            scratch=str(self.folder / "scratch"),
        )
        self._kept_by = {"kind": wrapped.kind, "lacks": wrapped.lacks}
        return Start(
            wrapped.words,
            env=sandbox_sync.environment(folder) | wrapped.environment,
            structured=started.structured,
            session=started.session,
        )

    @cached_property
    def _files(self) -> "Folder":
        """The files of a boxed run's session, as the run finds them."""
        assert self._run.session_id is not None
        return self._store.gateway.prepare(self._run.session_id)

    @cached_property
    def confinement(self) -> "Confinement | None":
        """The sandbox of the run; None without one. Boxed runs use another kind of sandbox."""
        if self._launch.is_boxed or self._launch.sandbox in (None, "none"):
            return None
        from corral.supervisor.confinement import Confinement

        return Confinement(
            self._store,
            self._run,
            self._launch,
            self.folder,
            self.provider.name,
            self._project_setting,
        )

    def _project_setting(self, name: str) -> Any:
        return self._store.settings.get(name, project=self._run.project_id).value

    def collect(self, log: Log) -> None:
        """Import the results of an attempt from its sandbox, after all its processes are dead."""
        if self.confinement is not None:
            session = self._provider_session() if self._run.session_id else None
            self.confinement.collect(self._checkout, session, log)

    def close(self) -> None:
        """Delete the sandbox's folders after the run."""
        if self.confinement is not None:
            self.confinement.close(self._checkout)

    @cached_property
    def _checkout(self) -> "Checkout":
        """The worktree that a sandboxed run works in, by what the store and its project's own
        repository say: what stands in the worktree may have been written by an agent, to be let
        out. Refused when there is none, and when it is the project's own folder: only what stands
        in it could say whose it is then."""
        from corral.adapters import git, repositories
        from corral.adapters.checkouts import known_checkout
        from corral.kernel.errors import Refused
        from corral.services.races.folders import repository_folder

        run = self._run
        assert run.project_id is not None
        repository = project = self._store.projects.get(run.project_id).dir
        inside = ""
        if repositories.is_in_git(repository):
            inside = os.fsdecode(git.told(repository, "rev-parse", "--show-prefix")).rstrip("/\n")
        elif (private := repository_folder(run.project_id)).is_dir():
            repository = str(private)
        top = run.cwd.removesuffix(f"/{inside}") if inside else run.cwd
        if f"{os.path.realpath(project)}/".startswith(f"{os.path.realpath(top)}/"):
            raise Refused(
                f"{top} is the project's own folder, and a sandbox keeps a run in a worktree of it;"
                " make one (`git worktree add`) and name that.",
                dir=top,
            )
        return known_checkout(repository, top)

    def _start(self, *, resume: bool) -> Start:
        run, launch = self._run, self._launch
        if launch.raw and run.mode is not Mode.ACP:
            words = [run.command, *run.args]
            return Start(words, structured=self._tells_by_itself(words))
        ask = self._ask(resume=resume)
        if run.mode is Mode.ACP:
            return self._acp_start(ask)
        started = self.provider.start(ask, run.command)
        if started.session is not None and run.session_id is not None:
            self._store.sessions.set_provider_session(
                run.session_id, self.provider.name, started.session
            )
        return started

    def _ask(self, *, resume: bool) -> Ask:
        run, launch = self._run, self._launch
        session = self._provider_session() if run.session_id else None
        prompt = launch.prompt
        if launch.is_boxed:
            from corral.adapters.sandbox_bridge.agent_client import MARK

            prompt = MARK  # the words themselves come by the session's file
        elif self._is_moved:
            from corral.services.runs.conversation import MOST_TURNS, retold

            # Told again in words; from the next attempt on, its provider remembers it here.
            assert run.session_id is not None
            given = self._store.sessions.context(run.session_id, limit=MOST_TURNS)
            session, prompt, self._is_moved = None, retold(given, None) or prompt, False
        goes_on = session is not None and (resume or launch.resume_session is not None)
        if session is None and getattr(self.provider, "chooses_session", False):
            session = _random_uuid()
        return Ask(
            prompt=None if resume and goes_on else prompt,
            model=self._told.model,
            instructions=self._instructions,
            session=session,
            resume=goes_on,
            interactive=launch.interactive,
            approvals=tuple(launch.approvals),
            allow=self._told.allow,
            deny=self._told.deny,
            is_sandboxed=launch.is_boxed or self.confinement is not None,
            is_root=os.geteuid() == 0 and not self._is_root_allowed(),
            own_folder=_is_made_by_corral(run.cwd),
            tools=self._told.tools,
            # Lock hooks need the store, which is not visible in a sandbox.
            hooks=run.agent_id is not None and self.confinement is None and _is_apart(run.cwd),
            extra=tuple(run.args),
        )

    def _is_root_allowed(self) -> bool:
        name = getattr(self.provider, "root_variable", None)
        return name is not None and bool((os.environ | self._launch.env).get(name))

    def _acp_start(self, ask: Ask) -> Start:
        """Any program may speak the protocol: one that is not known for it is started as it is."""
        run = self._run
        own = None if run.command == self.provider.program else run.command
        known = self.provider.acp(ask, own)
        if known is not None:
            return known
        session = ask.session if ask.resume else None
        return Start([run.command, *run.args], stdin=ask.prompt or GO_ON, session=session)

    def env(self, start: Start) -> dict[str, str]:
        """The keeper's own environment, what was given to the run, and who it is."""
        run = self._run
        if self._launch.is_boxed:
            # Nothing of the host's own, and not where the store is.
            return start.env | self._launch.env | self.secrets | {"CORRAL_RUN": run.id}
        # A person's token is not passed on: a run acts as itself.
        withheld = (*OWN_VARIABLES, "CORRAL_TOKEN")
        kept = {name: value for name, value in os.environ.items() if name not in withheld}
        kept["CORRAL_STORE"] = self._store.address
        given = start.env | self._launch.env | self.secrets
        kept = self.confinement.environment(given) if self.confinement else kept | given
        kept["CORRAL_RUN"] = run.id
        if self.secrets:  # what it calls Corral with is kept without them
            before = kept.get("CORRAL_SECRETS", "").split(",")
            kept["CORRAL_SECRETS"] = ",".join(dict.fromkeys([*before, *self.secrets])).strip(",")
        if run.session_id is not None:
            kept["CORRAL_SESSION"] = run.session_id
        if run.agent_id is not None:
            kept["CORRAL_AGENT"] = self._store.agents.get(run.agent_id).name
        if run.mode is Mode.PTY:
            kept.setdefault("TERM", "xterm-256color")
        return kept

    def streams(self, start: Start) -> Streams:
        if self._run.mode is Mode.PTY:
            rows, columns = self._size
            return Terminal(self.folder, rows=rows, columns=columns)
        if self._run.mode is Mode.ACP:
            return Talk(self.folder, stdin=None, split=bool(self.secrets))
        given: str | int | None = start.stdin
        if given is None and self._stdin is not None:
            given = self._stdin
        split = self._split or start.structured
        kind = Copied if self.secrets else Direct
        return kind(self.folder, stdin=given, split=split)

    def voice(self, start: Start, run: Run, streams: Streams, log: Log) -> Voice:
        """How this attempt's agent is understood."""
        voice = self._voice(start, run, streams, log)
        if self.provider.name in READABLE:
            self._follow_record(voice, start, run, log, started_at=SystemClock().now())
        return voice

    def _voice(self, start: Start, run: Run, streams: Streams, log: Log) -> Voice:
        if run.mode is Mode.ACP:
            return self._acp_voice(start, run, streams, log)
        if run.mode is Mode.PTY:
            return self._screen_voice(start, run, streams, log)
        if start.structured or self._launch.is_boxed:
            path = self.folder / OUTPUT
            return self._stream_voice(run, path.stat().st_size if path.exists() else 0, log)
        return Voice()

    def voice_of_old(self, run: Run, log: Log) -> Voice:
        """The same for an attempt that another keeper started: its stream is read again, whole,
        and what was kept before is not kept twice."""
        structured = not self._launch.raw or self._tells_by_itself([run.command, *run.args])
        voice = Voice()
        is_stream = run.mode is Mode.PIPE and structured and self.provider.name != "plain"
        if self._launch.is_boxed or is_stream:
            voice = self._stream_voice(run, self._offset_of(run.attempts), log)
        if self.provider.name in READABLE:
            session = self._provider_session() if run.session_id else None
            start = Start([run.command, *run.args], structured=is_stream, session=session)
            self._follow_record(voice, start, run, log, started_at=run.started_at or 0)
        return voice

    def _follow_record(
        self, voice: Voice, start: Start, run: Run, log: Log, *, started_at: int
    ) -> None:
        """Make the voice follow the record that the CLI keeps of the conversation."""
        from corral.supervisor.transcript import follow_record

        recorder = Recorder(
            self._store,
            run,
            voice,
            log,
            secrets=self._values,
            budget=voice.recorder.budget if voice.recorder else None,
        )
        follow_record(
            voice,
            recorder,
            store=self._store,
            run=run,
            provider=self.provider,
            env=self.env(start),
            session=start.session,
            started_at=started_at,
            prompt=None if self._launch.raw else self._launch.prompt,
            confinement=self.confinement,
        )

    def _stream_voice(self, run: Run, offset: int, log: Log) -> Voice:
        from corral.supervisor.stream_io import StreamVoice  # a plain run has no stream

        kind = StreamVoice
        if self._launch.is_boxed:
            from corral.supervisor.sandbox_io import BoxedVoice

            kind = BoxedVoice
        write_private_file(self.folder / f"offset.{run.attempts}", str(offset))
        parser = self.provider.parser(self._store)
        return kind(
            self._store,
            run,
            parser,
            self.folder / OUTPUT,
            offset=offset,
            secrets=self._values,
            log=log,
            # A command typed by the user has no session yet; its record has all turns.
            only_outcome=self._launch.raw and self.provider.name in READABLE,
        )

    def _offset_of(self, attempt: int) -> int:
        """Where an attempt's output begins in the file that all attempts share."""
        try:
            return int((self.folder / f"offset.{attempt}").read_text())
        except (OSError, ValueError):
            return 0

    def _screen_voice(self, start: Start, run: Run, streams: Streams, log: Log) -> Voice:
        screen = self.provider.screen
        if screen is None:
            return Voice()
        from corral.supervisor.screen_io import ScreenVoice

        return ScreenVoice(
            screen,
            size=self._size,
            approvals=frozenset(self._launch.approvals),
            type_in=streams.type_in,
            first_words=start.stdin,
            log=log,
        )

    def _acp_voice(self, start: Start, run: Run, streams: Streams, log: Log) -> Voice:
        from corral.adapters.providers.tools import for_acp
        from corral.supervisor.acp_io import AcpVoice

        def write(data: bytes) -> None:
            if not streams.type_in(data):
                raise BrokenPipeError

        return AcpVoice(
            self._store,
            run,
            write=write,
            prompt=start.stdin or "",
            session=start.session,
            approvals=frozenset(self._launch.approvals),
            allow=self._told.allow,
            deny=self._told.deny,
            servers=for_acp(self.env(start)) if self._told.tools else [],
            secrets=self._values,
            log=log,
        )

    @property
    def _values(self) -> list[str]:
        """The values of the secrets that the run was given."""
        return list(self.secrets.values())

    def environment(self) -> dict[str, Any]:
        """What the run found where it runs: versions, commit, allowed variables."""
        from corral.supervisor.environment import describe

        found = describe() | {"git": self._git(), "provider_version": self._version()}
        if self.confinement is not None:
            self._kept_by = {"kind": self._launch.sandbox, "lacks": self.confinement.lacks}
        return found | {"sandbox": self._kept_by} if self._kept_by else found

    def _git(self) -> dict[str, Any] | None:
        """Where its work stands in git. What an agent left there must not come to be a program of
        ours: in the worktree of a sandboxed one its repository is asked, in a box nobody is."""
        from corral.supervisor import environment

        if self._launch.is_boxed:
            return None
        if self._launch.sandbox in (None, "none"):
            return environment.git_at(self._run.cwd)
        return environment.git_of(self._checkout)

    def _version(self) -> str | None:
        if self._launch.raw or self.provider.name == "plain":
            return None
        import shutil

        return self.provider.version(shutil.which(self._run.command) or self._run.command)

    def _tells_by_itself(self, words: list[str]) -> bool:
        return self.provider.name != "plain" and not STRUCTURED.isdisjoint(words)

    def _provider_session(self) -> str | None:
        assert self._run.session_id is not None
        return self._store.sessions.get(self._run.session_id).provider_session

    def _what_its_agent_is_told(self) -> Told:
        run = self._run
        if run.agent_id is None or run.agent_version is None:
            return Told()
        version = self._store.agents.version(run.agent_id, run.agent_version)
        grants = self._store.agents.grants(run.agent_id).items
        return Told(
            version.model,
            version.instructions,
            tuple(grant.tool for grant in grants if grant.allowed),
            tuple(grant.tool for grant in grants if not grant.allowed),
            self._gets_tools(),
        )

    @cached_property
    def _instructions(self) -> str | None:
        """What its agent is told besides the prompt: its own instructions, and what was noted for
        it, for the project and for everyone, as far as that fits the prompt."""
        run, own = self._run, self._told.instructions
        if run.agent_id is None or not (tokens := self._setting("notes.tokens")):
            return own
        prompt = self._launch.prompt
        section = self._store.notes.section(
            about=prompt[:MOST_ABOUT] if prompt else None,
            agent=run.agent_id,
            project=run.project_id,
            tokens=tokens,
        )
        if not section.notes:
            return own
        self._store.notes.use(section.notes)
        return f"{own}\n\n{section.text}" if own else section.text

    def _gets_tools(self) -> bool:
        return self._setting("runs.tools") is True

    def _setting(self, name: str) -> Any:
        """What is chosen for the run's agent and project."""
        agent = self._store.agents.get(self._run.agent_id or "").name
        return self._store.settings.get(name, agent=agent, project=self._run.project_id).value


def _is_made_by_corral(dir: str) -> bool:
    """Whether a directory is in a worktree that Corral created for a race or a task."""
    from corral.services.races.folders import races_folder
    from corral.services.tasks.autostart import worktrees_folder

    real = os.path.realpath(dir)
    folders = (os.path.realpath(folder) for folder in (races_folder(), worktrees_folder()))
    return any(real.startswith(f"{folder}/") for folder in folders)


def _is_apart(dir: str) -> bool:
    """Whether a directory is in a linked git worktree: what is installed in the project's own
    directory, and is not in the repository, is not there."""
    from corral.adapters import git

    top = git.worktree_of(os.path.realpath(dir))
    return top is not None and git.main_worktree(top) is not None


def _random_uuid() -> str:
    """A version 4 UUID, without the module that knows them all."""
    number = int.from_bytes(os.urandom(16))
    number = number & ~(0xF << 76) | 4 << 76
    number = number & ~(0b11 << 62) | 0b10 << 62
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
