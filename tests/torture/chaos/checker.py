"""The checker: a pure function of the store's events and of the observations.

It returns the violations as sentences; an empty list means that every guarantee held.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from corral.domain.mail.model import is_ordered
from tests.torture.chaos.journal import AttemptRecord, History, JournalEntry, StoreEvent

LETTER_ENDS = ("ack", "dead_letter", "refuse", "expire", "confirm", "drop")
RUN_ENDS = ("complete", "fail", "crash", "cancel", "time_out", "interrupt")
# The test itself, a supervisor that ends a run taken over by another node, and a closing terminal
# may each send these signals at any time.
ALWAYS_POSSIBLE = (1, 9, 15)


def judge(history: History) -> list[str]:
    """Return all violations."""
    checks = (
        legal_moves,
        rising_fences,
        one_owner,
        letters_end_once,
        order_in_mailboxes,
        unrepeatable_acts,
        timers_once,
        series_are_complete,
        one_holder,
        run_outcomes_are_true,
        outputs_are_complete,
        answered_once,
        no_process_left_or_harmed,
    )
    return [wrong for check in checks for wrong in check(history)]


# -- states and fences -----------------------------------------------------------------------------


def legal_moves(history: History) -> Iterator[str]:
    """Every record was created once and moved only along its transition table."""
    reached: dict[tuple[str, str], str] = {}
    for event in history.events:
        moves = history.moves.get(event.kind)
        if moves is None:
            continue
        key = event.kind, event.subject
        if event.verb in moves.initial_states and key not in reached:
            reached[key] = moves.initial_states[event.verb]
        elif event.verb in moves.initial_states and event.verb not in moves.verbs:
            yield f"{event.subject} was created twice"
        elif event.verb in moves.verbs:
            sources, to = moves[event.verb]
            state = reached.get(key)
            if state not in sources:
                yield f"{event.subject}: {event.verb} from {state or 'nothing'}"
            reached[key] = to


def rising_fences(history: History) -> Iterator[str]:
    """No observer saw a fence decrease; each claim of a task has a higher one."""
    latest: dict[str, int] = {}
    for subject, fence in history.seen:
        if fence < latest.get(subject, 0):
            yield f"the fence of {subject} went from {latest[subject]} back to {fence}"
        latest[subject] = fence
    claims: dict[str, int] = {}
    for event in history.events:
        if (event.kind, event.verb) == ("task", "claim"):
            fence = int(event.data["fence"])
            if fence <= claims.get(event.subject, 0):
                yield f"{event.subject} was claimed with fence {fence} again"
            claims[event.subject] = fence


def one_owner(history: History) -> Iterator[str]:
    """No earlier owner succeeds after a later one, and no two owners share a fence."""
    owners: dict[tuple[str, int], str] = {}
    by_subject: dict[str, list[JournalEntry]] = defaultdict(list)
    for note in history.notes:
        if note.fence is None:
            continue
        by_subject[note.subject].append(note)
        if owners.setdefault((note.subject, note.fence), note.worker) != note.worker:
            yield f"{note.subject} was given to two owners with fence {note.fence}"
    for subject, notes in by_subject.items():
        # In the order in which the calls started: the highest fence of the calls finished by then.
        finished = sorted(notes, key=lambda note: note.ended)
        index, highest = 0, 0
        for note in sorted(notes, key=lambda note: note.started):
            while finished[index].ended < note.started:
                highest = max(highest, finished[index].fence or 0)
                index += 1
            if (note.fence or 0) < highest:
                yield (
                    f"{subject}: {note.action} of {note.worker} with fence {note.fence} "
                    f"was accepted after fence {highest}"
                )


# -- letters ---------------------------------------------------------------------------------------


def letters_end_once(history: History) -> Iterator[str]:
    """Every accepted letter exists and ended exactly once."""
    ends: Counter[str] = Counter()
    put: set[str] = set()
    for event in history.events:
        if event.kind == "letter":
            put |= {event.subject} if event.verb == "put" else set()
            ends[event.subject] += event.verb in LETTER_ENDS
            ends[event.subject] -= event.verb == "resend"
    keys: dict[tuple[str | None, str | None], str] = {}
    for note in _entries(history, "put"):
        if note.subject not in put:
            yield f"{note.subject} was accepted, and the record does not know it"
        if keys.setdefault((note.mailbox, note.key), note.subject) != note.subject:
            yield f"the key {note.key} made two letters"
    for letter in put:
        if ends[letter] != 1:
            yield f"{letter} ended {ends[letter]} times"


def order_in_mailboxes(history: History) -> Iterator[str]:
    """Letters end in the order in which they were accepted.

    An unconfirmed letter blocks others only until its lease expires.
    """
    ended: dict[str, int] = {}
    unconfirmed = {event.subject for event in _events(history, "letter", "begin_delivery")}
    for place, event in enumerate(history.events):
        if event.kind == "letter" and event.verb in LETTER_ENDS:
            ended.setdefault(event.subject, place)
    boxes: dict[str, list[JournalEntry]] = defaultdict(list)
    for note in _entries(history, "put"):
        if note.mailbox is not None and is_ordered(note.mailbox) and note.subject in ended:
            boxes[note.mailbox].append(note)
    for mailbox, notes in boxes.items():
        notes.sort(key=lambda note: note.started)
        for number, note in enumerate(notes):
            for earlier in notes[max(0, number - 50) : number]:
                before = earlier.ended < note.started and earlier.subject not in unconfirmed
                if before and ended[earlier.subject] > ended[note.subject]:
                    yield f"{mailbox}: {note.subject} ended before {earlier.subject}"


def unrepeatable_acts(history: History) -> Iterator[str]:
    """An action marked as not repeatable was done at most once."""
    acts = Counter(note.subject for note in _entries(history, "act in doubt"))
    yield from (f"{letter} was acted on {n} times" for letter, n in acts.items() if n > 1)


# -- timers ----------------------------------------------------------------------------------------


def timers_once(history: History) -> Iterator[str]:
    """Every accepted timer has put exactly one letter."""
    fired: dict[str, list[str]] = defaultdict(list)
    once: set[str] = set()
    for event in _events(history, "schedule", "fire", "finish"):
        fired[event.subject] += event.data["letters"]
        once |= {event.subject} if event.verb == "finish" else set()
    requested = {note.subject for note in _entries(history, "timer")}
    for timer in requested | once:
        if len(fired[timer]) != 1 and (timer in requested or len(fired[timer]) > 1):
            yield f"{timer} put {len(fired[timer])} letters"
    put = {event.subject for event in _events(history, "letter", "put")}
    letters_of_timers = [letter for letters in fired.values() for letter in letters]
    yield from (
        f"a timer tells of {letter}, which is not there" for letter in {*letters_of_timers} - put
    )
    yield from (
        f"{letter} was put by two" for letter, n in Counter(letters_of_timers).items() if n > 1
    )


def series_are_complete(history: History) -> Iterator[str]:
    """No time of a series is missing or duplicated."""
    times: dict[str, list[int]] = defaultdict(list)
    for event in _events(history, "schedule", "fire"):
        times[event.subject] += event.data["scheduled_times"]
        if len(event.data["scheduled_times"]) != len(event.data["letters"]):
            yield f"{event.subject}: {event.data['scheduled_times']} put {event.data['letters']}"
    for series, series_times in times.items():
        steps = {later - earlier for earlier, later in pairwise(series_times)}
        if len(steps) > 1 or any(step <= 0 for step in steps):
            yield f"{series}: steps of {sorted(steps)} ms"


# -- locks -----------------------------------------------------------------------------------------


def one_holder(history: History) -> Iterator[str]:
    """By the events alone: a path has one lock holder at a time."""
    holds: dict[str, str] = {}
    paths: dict[str, str] = {}
    for event in _events(history, "lock", *history.moves["lock"].verbs, "acquire", "request"):
        data = event.data if isinstance(event.data, dict) else {}
        path = paths.setdefault(event.subject, str(data.get("path")))
        if event.verb in ("acquire", "grant"):
            if path in holds:
                yield f"{path} was given to {event.subject} while {holds[path]} held it"
            holds[path] = event.subject
        elif holds.get(path) == event.subject:
            del holds[path]


# -- runs ------------------------------------------------------------------------------------------


def run_outcomes_are_true(history: History) -> Iterator[str]:
    """Every accepted run ended once, with no invented exit code or signal."""
    last: dict[str, int] = {}
    ended: dict[str, StoreEvent] = {}
    for event in _events(history, "run", "start", "restart", *RUN_ENDS):
        if event.verb not in RUN_ENDS:
            last[event.subject] = int(event.data["pid"])
        elif ended.setdefault(event.subject, event) is not event:
            yield f"{event.subject} ended twice"
    for note in _entries(history, "run"):
        if note.subject not in ended:
            yield f"{note.subject} was accepted and is not over"
    intended = {(attempt.run, attempt.pid): attempt.end for attempt in history.runs}
    # The runs of the chat did not record how they intend to end.
    known = {attempt.run for attempt in history.runs} | {
        note.subject for note in _entries(history, "run")
    }
    for run, event in ended.items():
        if run in known:
            yield from _check_end(event, intended.get((run, last.get(run, 0))))


def _check_end(event: StoreEvent, intended: str | None) -> Iterator[str]:
    run, code, number = event.subject, event.data["exit_code"], event.data["signal"]
    if code is not None and intended != f"exit{code}":
        yield f"{run}: exit code {code} was never returned; the agent intended {intended}"
    if number is not None and number not in ALWAYS_POSSIBLE and intended != f"signal{number}":
        yield f"{run}: signal {number} was not sent; the agent intended {intended}"
    if event.verb == "complete" and code != 0:
        yield f"{run} is completed with {code}"


def outputs_are_complete(history: History) -> Iterator[str]:
    """The output of a run's last attempt is complete and in order."""
    latest: dict[str, AttemptRecord] = {attempt.run: attempt for attempt in history.runs}
    for attempt in history.runs:
        if attempt.shown is None:
            continue
        if attempt.shown != list(range(1, len(attempt.shown) + 1)):
            yield f"{attempt.run}: lines out of order, twice or missing in attempt {attempt.pid}"
        is_last = latest[attempt.run] is attempt
        if is_last and not attempt.is_lossy and len(attempt.shown) < attempt.wrote:
            count = f"{len(attempt.shown)} of {attempt.wrote} lines"
            yield f"{attempt.run}: {count} of attempt {attempt.pid}"


def answered_once(history: History) -> Iterator[str]:
    """Every message was answered once, in its place and in its order."""
    answers = Counter(history.shown)
    turn = {number: place for place, number in enumerate(history.heard)}
    for place, number in {*history.said, *answers}:
        times, wanted = answers[place, number], int((place, number) in history.said)
        if times != wanted:
            yield f"#{number} in {place} was answered {times} times"
    for answered_place in {place for place, _ in history.shown}:
        numbers = [number for place, number in history.shown if place == answered_place]
        if numbers != sorted(numbers, key=lambda number: turn.get(number, 0)):
            yield f"{answered_place} was answered out of order: {numbers}"


def no_process_left_or_harmed(history: History) -> Iterator[str]:
    """No process is left, and no unrelated process was signalled."""
    yield from (f"left: {process}" for process in history.left)
    yield from history.signalled


def _entries(history: History, action: str) -> Iterable[JournalEntry]:
    return (note for note in history.notes if note.action == action)


def _events(history: History, kind: str, *verbs: str) -> Iterable[StoreEvent]:
    return (event for event in history.events if event.kind == kind and event.verb in verbs)
