"""Read the state of an agent CLI from its rendered terminal screen.

Terminal runs have no structured stream, so the supervisor reads the screen. All functions here are
pure: they take the rendered lines and return a `ScreenReading`.

The output of an agent can imitate a dialog. Therefore a dialog is recognized only where the
interface draws one: at the bottom of the screen, with the known footer below the options, the known
question above them, and exactly one option marked. All other text is output and triggers no keys.

A policy, the set of approved classes, decides which dialogs are answered automatically. The default
policy is empty. Of several affirmative options, the narrowest is selected.
"""

import re
from collections.abc import Callable
from typing import Literal

import msgspec

ScreenState = Literal["ready", "working", "needs_input", "limit", "fatal", "unknown"]
# Returns the background colour of the cell at a row and column.
BackgroundAt = Callable[[int, int], str]

DOWN, UP, ENTER, ESCAPE = "\x1b[B", "\x1b[A", "\r", "\x1b"
RIGHT, LEFT = "\x1b[C", "\x1b[D"
STATUS_LINES = 8  # lines at the bottom that are searched for the status of the interface
MAX_QUESTION_DISTANCE = 60  # lines above the options that are searched for the question
MAX_NOTICE_LINES = 4
MAX_KEY_PRESSES = 3  # attempts to answer one dialog


class DialogPattern(msgspec.Struct, frozen=True):
    """The question of a dialog, and the approval class that it belongs to."""

    kind: str
    """`edit` a file, `run` a command, `trust` a folder."""
    question: re.Pattern[str]
    near: bool = True
    """Whether the question is directly above the options. Otherwise text of the agent may be in
    between and imitate a question, so exactly one line must match."""


class ScreenLayout(msgspec.Struct, frozen=True):
    """How one CLI draws its interface. Patterns match single lines without box borders."""

    cursor: str
    """The glyph before the marked option."""
    footer: re.Pattern[str] | None
    """The last line below the options of a dialog; None if it is the bottom edge of a box."""
    dialogs: tuple[DialogPattern, ...]
    yes: re.Pattern[str]
    """Matches the options that allow only this request and no later one."""
    working: re.Pattern[str]
    ready: re.Pattern[str]
    below: bool = False
    """Whether the status is below the input line, where no output of the agent can appear."""
    limit: re.Pattern[str] | None = None
    fatal: re.Pattern[str] | None = None
    bar: bool = False
    """Whether the options are side by side and the marked one differs only by its background."""
    draft: re.Pattern[str] | None = None
    """The input line; group 1 is the text in it. None: the last box above the status line."""
    edge: int = 0
    """Maximum distance in lines from the input line to the edge above it; 0: no edge required."""
    head: re.Pattern[str] | None = None
    """The first line of a dialog that has no upper edge."""
    notice: re.Pattern[str] | None = None
    """The first line of a message that the interface may show below the box of a dialog."""
    stacked: bool = False
    """Whether a second dialog may be open above the one at the bottom. Keys would then reach the
    wrong dialog, so no option is selected."""


class ScreenReading(msgspec.Struct, frozen=True):
    """The state of an interface, read from one screen."""

    state: ScreenState
    question: str | None = None
    kind: str | None = None
    """The approval class of the question; None if no policy can approve it."""
    options: list[str] = []
    """Empty in `needs_input`: the options are not readable, or two dialogs are open."""
    marked: int | None = None
    """The option that Enter selects; None if the mark is not visible."""
    subject: list[str] = []
    """The subject of the question: the lines of the dialog above its options."""
    draft: str | None = None
    """The text in the input line, or its placeholder; None if there is no input line."""
    answer: str | None = None
    """The keys that approve the request; None if a person must decide."""
    detail: str | None = None
    """The message of a limit or a fatal error."""


_pattern = re.compile
_ONCE = r"^(?:\d+\. )?(?:Yes|Allow once|Yes, allow once|Yes, proceed)(?: \([a-z]\))?$"

SCREENS: dict[str, ScreenLayout] = {
    "claude": ScreenLayout(
        cursor="❯",
        footer=_pattern(r"^(?:Enter to confirm · )?Esc to cancel(?: · .*)?$"),
        dialogs=(
            DialogPattern(
                "edit", _pattern(r"^Do you want to (?:create|make this edit to|overwrite) .+\?$")
            ),
            DialogPattern("run", _pattern(r"^Do you want to proceed\?$")),
            DialogPattern("trust", _pattern(r"^Security guide$")),
        ),
        yes=_pattern(_ONCE + r"|^Yes, I trust this folder$"),
        working=_pattern(r"^\S.* · esc to interrupt(?: · .*|\s{2,}.*)?$"),
        ready=_pattern(r"^❯(?:\s.*)?$"),
        draft=_pattern(r"^❯\s?(.*)$"),
        edge=1,
        below=True,
        limit=_pattern(r"^⚠ Usage limit reached · limit resets .+$"),
        fatal=_pattern(r"^error: (?:unknown option|option) .+$"),
    ),
    "codex": ScreenLayout(
        cursor="›",
        footer=_pattern(r"^Press enter to (?:confirm or esc to cancel|continue)$"),
        dialogs=(
            DialogPattern(
                "run", _pattern(r"^Would you like to run the following command\?$"), near=False
            ),
            DialogPattern(
                "edit", _pattern(r"^Would you like to make the following edits\?$"), near=False
            ),
        ),
        yes=_pattern(_ONCE),
        working=_pattern(r"^[•◦] Working \(.*esc to interrupt\)$"),
        ready=_pattern(r"^›(?: .*)?$"),
        draft=_pattern(r"^› ?(.*)$"),
        limit=_pattern(r"^■ You.ve hit your usage limit\..*$"),
        fatal=_pattern(r"^Error loading configuration: .+$"),
    ),
    "gemini": ScreenLayout(
        cursor="●",
        footer=None,
        dialogs=(
            DialogPattern("edit", _pattern(r"^Apply this change\?$")),
            DialogPattern("run", _pattern(r"^Allow execution of.+\?$")),
            DialogPattern(
                "trust", _pattern(r"^Do you trust the files in this folder\?$"), near=False
            ),
        ),
        yes=_pattern(_ONCE + r"|^1\. Trust folder \(.*\)$"),
        working=_pattern(r"^[⠀-⣿] .*\(.*esc to cancel.*\).*$"),
        ready=_pattern(r"^[>!*](?:\s.*)?$"),
        draft=_pattern(r"^[>!*]\s*(.*)$"),
        edge=3,  # a line with the mode may be in between
        notice=_pattern(r"^[⚠ℹ] "),
        stacked=True,
    ),
    "copilot": ScreenLayout(
        cursor="❯",
        footer=_pattern(r"^↑/↓ to navigate · enter to select · esc to cancel$"),
        dialogs=(
            DialogPattern("edit", _pattern(r"^Do you want to (?:create|edit|overwrite) .+\?$")),
            DialogPattern("run", _pattern(r"^Do you want to run this command\?$")),
            DialogPattern("trust", _pattern(r"^Do you trust the files in this folder\?$")),
        ),
        yes=_pattern(_ONCE),
        working=_pattern(r"^◎ Working\b.* interrupt.*$"),
        ready=_pattern(r"^❯(?: .*)?$"),
        draft=_pattern(r"^❯\s?(.*)$"),
        edge=1,
        below=True,
    ),
    "opencode": ScreenLayout(
        cursor="",
        bar=True,
        # A narrow terminal cuts off the text after the options.
        footer=_pattern(r"^Allow once\s+Allow always\s+Reject\s{2,}\S.*$"),
        dialogs=(
            DialogPattern("edit", _pattern(r"^→ Edit .+$"), near=False),
            DialogPattern("run", _pattern(r"^# Shell command$"), near=False),
        ),
        yes=_pattern(r"^Allow once$"),
        working=_pattern(r"^[⬝■]+ +esc interrupt\b.*$"),
        ready=_pattern(r"^.*\bctrl\+p commands$"),
    ),
}

SCREENS["scripted"] = msgspec.structs.replace(SCREENS["claude"], below=False, edge=0)
SCREENS["qwen"] = msgspec.structs.replace(  # a fork of Gemini CLI
    SCREENS["gemini"],
    cursor="›",
    footer=_pattern(r"^[⠀-⣿] Waiting for user confirmation\.\.\.$"),
    edge=1,
    head=_pattern(r"^\?\s+\S"),
    stacked=False,
)


def read_screen(
    screen: ScreenLayout,
    lines: list[str],
    policy: frozenset[str] = frozenset(),
    background: BackgroundAt | None = None,
) -> ScreenReading:
    """Return what a screen shows, with the answer to its dialog if the policy approves it.

    The result has the answer each time; `ScreenReader` returns it once per appearance of a dialog.
    `background` is required if an option is marked only by colour; without it, the first option
    counts as marked.
    """
    rows = _parse_rows(lines)
    dialog = None
    if (end := _end_of_dialog(screen, lines, rows)) is not None:
        shown = rows[:end]
        dialog = (
            _read_bar(screen, lines, shown, background) if screen.bar else _read_menu(screen, shown)
        )
    elif screen.below:
        dialog = _read_bare_menu(screen, rows)
    if dialog is not None:
        answer = None
        if dialog.kind is not None and ("all" in policy or dialog.kind in policy):
            answer = _choose_approval_keys(screen, dialog.options, dialog.marked)
        return ScreenReading(
            "needs_input",
            dialog.question,
            dialog.kind,
            dialog.options,
            dialog.marked,
            dialog.subject,
            answer=answer,
        )
    return msgspec.structs.replace(
        _read_status(screen, rows), draft=_read_draft(screen, lines, rows)
    )


def _read_status(screen: ScreenLayout, rows: list[tuple[int, str]]) -> ScreenReading:
    """Read the state of the interface when no dialog is open."""
    texts = [text for _, text in rows if text]
    if screen.fatal and (at := _find(screen.fatal, texts[-2:])) is not None:
        return ScreenReading("fatal", detail=texts[-2:][at])
    tail = texts[-STATUS_LINES:]
    prompt = _find_input_line(screen, rows, tail)
    status = tail[prompt + 1 :] if screen.below and prompt is not None else tail
    if screen.below and prompt is None:
        return ScreenReading("unknown")
    if _find(screen.working, status) is not None:
        return ScreenReading("working")
    if screen.limit and (at := _find(screen.limit, status)) is not None:
        # The message, with the reset time, may continue on the next line.
        return ScreenReading("limit", detail=" ".join(status[at : at + 2]))
    return ScreenReading("unknown" if prompt is None else "ready")


def _find_input_line(
    screen: ScreenLayout, rows: list[tuple[int, str]], tail: list[str]
) -> int | None:
    """Return the index of the input line in `tail`.

    The edge above distinguishes it from a marked option of a menu, which may look the same.
    """
    prompt = _find(screen.ready, tail, last=True)
    if prompt is None or not screen.edge:
        return prompt
    at = [number for number, (_, text) in enumerate(rows) if text][-len(tail) :][prompt]
    return prompt if _has_edge(screen, rows, at) else None


def _has_edge(screen: ScreenLayout, rows: list[tuple[int, str]], at: int) -> bool:
    above = rows[max(0, at - screen.edge) : at]
    return any(indent == _BEGIN for indent, _ in above)


def _read_draft(screen: ScreenLayout, lines: list[str], rows: list[tuple[int, str]]) -> str | None:
    """Return the text in the input line: the last line of its form, below an edge if it has one.

    A list of commands may be shown below it, so with an edge the whole screen is searched.
    """
    if screen.draft is None:
        return _read_boxed_draft(lines)
    first = 0 if screen.edge else max(0, len(rows) - STATUS_LINES)
    for at in range(len(rows) - 1, first - 1, -1):
        match = screen.draft.match(rows[at][1])
        if match and (not screen.edge or _has_edge(screen, rows, at)):
            return match[1].strip()
    return None


def _read_boxed_draft(lines: list[str]) -> str | None:
    """Return the text in the last closed box, without its last line, which names the model."""
    bottom = next((at for at in range(len(lines) - 1, -1, -1) if _CLOSED.match(lines[at])), None)
    if bottom is None:
        return None
    text: list[str] = []
    for line in reversed(lines[:bottom]):
        if not (box := _BORDERS.match(line)):
            break
        text.insert(0, box[2].strip())
    return " ".join(part for part in text[:-1] if part)


class OpenDialog(msgspec.Struct, frozen=True):
    """A dialog that is open on the screen."""

    question: str
    kind: str | None
    options: list[str]
    marked: int | None
    subject: list[str]


class ScreenReader:
    """Reads the screen of one run repeatedly and answers each dialog once.

    A dialog that is still open after its answer, redrawn or moved, gets no second answer: a person
    must decide. It is answered again only after it has disappeared in between. If the screen has
    not changed at all, the interface dropped the keys, and `retry_keys` returns them again.
    """

    def __init__(self, screen: ScreenLayout, policy: frozenset[str] = frozenset()) -> None:
        self.screen = screen
        self.policy = policy
        self._answered: tuple[str | None, list[str], list[str]] | None = None
        self._keys: str | None = None
        self._presses = 0

    def retry_keys(self) -> str | None:
        """Return the keys of the last answer again; None after `MAX_KEY_PRESSES` attempts.

        Call it only if the screen has not changed since the answer: interfaces drop keys that
        arrive too early.
        """
        if self._answered is None or self._presses >= MAX_KEY_PRESSES:
            return None
        self._presses += 1
        return self._keys

    def look(self, lines: list[str], background: BackgroundAt | None = None) -> ScreenReading:
        """Read a screen; `answer` is set only the first time a dialog appears."""
        reading = read_screen(self.screen, lines, self.policy, background)
        if reading.answer is None:  # no dialog, or a person must answer it
            self._answered = None
            return reading
        dialog = (reading.question, reading.options, reading.subject)
        if self._answered == dialog:
            return msgspec.structs.replace(reading, answer=None)
        self._answered = dialog
        self._keys, self._presses = reading.answer, 1
        return reading


_BORDERS = re.compile(r"^(\s*)[│┃](.*?)[│┃]?\s*$")
_BOTTOM = re.compile(r"^\s*╰─+╯\s*$")
_CLOSED = re.compile(r"^\s*╹▀+\s*$")
_EDGE = re.compile(r"^\s*[╭╰╮╯─╌╹▀]{3,}\s*$")
_TOP = re.compile(r"^\s*(?:╭─{20,}|─{20,})")
_BEGIN = -1  # pseudo indentation of a row where a box or a dialog begins


def _parse_rows(lines: list[str]) -> list[tuple[int, str]]:
    """Return the indentation and text of each line, without box borders; edges are empty rows."""
    rows = []
    for line in lines:
        if _EDGE.match(line):
            rows.append((_BEGIN if _TOP.match(line) else 0, ""))
            continue
        if box := _BORDERS.match(line):
            line = f"{box[1]} {box[2]}"
        line = line.rstrip()
        rows.append((len(line) - len(line.lstrip()), line.strip()))
    while rows and not rows[-1][1]:
        rows.pop()
    return rows


def _end_of_dialog(
    screen: ScreenLayout, lines: list[str], rows: list[tuple[int, str]]
) -> int | None:
    """Return the number of rows up to the end of the dialog at the bottom; None without one."""
    if screen.footer is not None:
        return len(rows) if rows and screen.footer.match(rows[-1][1]) else None
    bottoms = [at for at, line in enumerate(lines) if _BOTTOM.match(line)]
    if not bottoms:
        return None
    below = [line.strip() for line in lines[bottoms[-1] + 1 :] if line.strip()]
    is_notice = screen.notice is not None and below and screen.notice.match(below[0])
    if below and not (is_notice and len(below) <= MAX_NOTICE_LINES):
        return None
    return min(bottoms[-1], len(rows))


def _read_bare_menu(screen: ScreenLayout, rows: list[tuple[int, str]]) -> OpenDialog | None:
    """Read a menu without a footer, at the bottom and below an edge.

    It replaces the input line and asks for something other than a permission, so no policy answers
    it.
    """
    match = _find_last_options(screen, rows)
    if match is None:
        return None
    at, options, marked = match
    above = rows[max(0, at - MAX_QUESTION_DISTANCE) : at]
    texts = [text for _, text in above if text]
    if not texts or not any(indent == _BEGIN for indent, _ in above):
        return None
    subject = _read_subject(screen, above, texts[-1])
    if not subject:
        return None  # no question between the edge and the options
    return OpenDialog(subject[0], None, options, marked, subject)


def _find_last_options(
    screen: ScreenLayout, rows: list[tuple[int, str]]
) -> tuple[int, list[str], int] | None:
    """Return the first row, the labels and the marked index of the options at the end."""
    end = len(rows)
    while end and not rows[end - 1][1]:
        end -= 1
    begin = end
    while begin and rows[begin - 1][1]:
        begin -= 1
    match = _parse_options(screen.cursor, rows[begin:end])
    return None if match is None else (begin + match[0], match[1], match[2])


def _read_menu(screen: ScreenLayout, rows: list[tuple[int, str]]) -> OpenDialog | None:
    """Read a dialog whose options are below each other."""
    match = _find_last_options(screen, rows[: len(rows) - (screen.footer is not None)])
    if match is None:
        return None
    at, options, marked = match
    above = rows[max(0, at - MAX_QUESTION_DISTANCE) : at]
    question, kind = _find_question(screen, [text for _, text in above if text])
    if kind is None and not _is_numbered(options):
        return None
    subject = _read_subject(screen, above, question)
    if screen.stacked and _has_menu(screen.cursor, rows[:at]):
        return OpenDialog(question, None, [], None, subject)
    return OpenDialog(question, kind, options, marked, subject)


def _has_menu(cursor: str, rows: list[tuple[int, str]]) -> bool:
    """Return whether these rows contain a menu with a marked, numbered option."""
    marked = re.compile(rf"^{re.escape(cursor)} \d+\. ")
    numbered = re.compile(r"^\d+\. ")
    return any(
        marked.match(text)
        and any(numbered.match(near) for _, near in rows[max(0, at - 1) : at + 2])
        for at, (_, text) in enumerate(rows)
    )


def _read_subject(screen: ScreenLayout, above: list[tuple[int, str]], question: str) -> list[str]:
    """Return the lines of a dialog above its options.

    They begin at the upper edge, at the first line of the dialog or at the question.
    """
    lines: list[str] = []
    for indent, text in above:
        is_head = screen.head is not None and screen.head.match(text) is not None
        if indent == _BEGIN or is_head or (text == question and not lines):
            lines = []
        if text:
            lines.append(text)
    at = lines.index(question) if question in lines else 0
    return lines[at:] if at < len(lines) - 1 else lines


def _parse_options(cursor: str, block: list[tuple[int, str]]) -> tuple[int, list[str], int] | None:
    """Return the first row, the labels and the marked index of the options in a block.

    None unless exactly one option is marked.
    """
    marks = [at for at, (_, text) in enumerate(block) if text.startswith(f"{cursor} ")]
    if len(marks) != 1:
        return None
    marked_text = block[marks[0]][1]
    column = block[marks[0]][0] + len(marked_text) - len(marked_text[1:].lstrip())
    options: list[str] = []
    first, marked = marks[0], 0
    for at, (indent, text) in enumerate(block):
        if at == marks[0]:
            marked = len(options)
            options.append(text[1:].strip())
        elif indent == column:
            first = min(first, at)
            options.append(text)
        elif indent > column and options:
            options[-1] += f" {text}"
        elif options:
            return None  # other text is between the options
    return (first, options, marked) if len(options) > 1 else None


def _is_numbered(options: list[str]) -> bool:
    return all(option.startswith(f"{number}. ") for number, option in enumerate(options, 1))


def _read_bar(
    screen: ScreenLayout,
    lines: list[str],
    rows: list[tuple[int, str]],
    background: BackgroundAt | None,
) -> OpenDialog:
    """Read a dialog whose options are side by side."""
    options = [part for part in re.split(r"\s{2,}", rows[-1][1]) if part][:3]
    above = rows[-MAX_QUESTION_DISTANCE:-1]
    question, kind = _find_question(screen, [text for _, text in above if text])
    marked = (
        0 if background is None else _find_highlighted(lines, len(rows) - 1, options, background)
    )
    return OpenDialog(question, kind, options, marked, _read_subject(screen, above, question))


def _find_highlighted(
    lines: list[str], row: int, options: list[str], background: BackgroundAt
) -> int | None:
    """Return the option with a unique background; None unless there is exactly one."""
    colours: list[str] = []
    column = 0
    for option in options:
        column = lines[row].index(option, column)
        colours.append(background(row, column))
        column += len(option)
    unique = [at for at, colour in enumerate(colours) if colours.count(colour) == 1]
    return unique[0] if len(unique) == 1 and len(set(colours)) == 2 else None


def _find_question(screen: ScreenLayout, above: list[str]) -> tuple[str, str | None]:
    """Return the question in the lines above the options, and its approval class."""
    last = above[-1] if above else ""
    for dialog in screen.dialogs:
        if dialog.near and dialog.question.match(last):
            return last, dialog.kind
    far = [
        (text, dialog.kind)
        for dialog in screen.dialogs
        if not dialog.near
        for text in above
        if dialog.question.match(text)
    ]
    return far[0] if len(far) == 1 else (last, None)


def _choose_approval_keys(
    screen: ScreenLayout, options: list[str], marked: int | None
) -> str | None:
    wanted = next((at for at, label in enumerate(options) if screen.yes.match(label)), None)
    if wanted is None or marked is None:
        return None
    return arrow_keys(screen, marked, wanted) + ENTER


def arrow_keys(screen: ScreenLayout, marked: int, wanted: int) -> str:
    """Return the arrow keys that move the mark from one option to another."""
    forward, back = (RIGHT, LEFT) if screen.bar else (DOWN, UP)
    distance = wanted - marked
    return (forward if distance > 0 else back) * abs(distance)


def _find(pattern: re.Pattern[str], texts: list[str], *, last: bool = False) -> int | None:
    matches = [at for at, text in enumerate(texts) if pattern.match(text)]
    return matches[-1 if last else 0] if matches else None
