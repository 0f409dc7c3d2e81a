"""What an agent's screen says, where only a screen exists: pure functions over rendered lines.

Whatever an agent prints may look like a dialog. So a dialog is believed only where the interface
draws one: at the very bottom of the screen, with its own footer below the options, its own question
above them and one of them marked. Everything else is output, and nothing is typed because of it.

Which answer is given is decided by a policy: the classes of things that were allowed beforehand.
Nothing is allowed by default, and of several ways to say yes the narrowest is taken.
"""

import re
from collections.abc import Callable
from typing import Literal

import msgspec

State = Literal["ready", "working", "needs_input", "limit", "fatal", "unknown"]
# The background colour of a cell, by its row and column.
Background = Callable[[int, int], str]

DOWN, UP, ENTER, ESCAPE = "\x1b[B", "\x1b[A", "\r", "\x1b"
RIGHT, LEFT = "\x1b[C", "\x1b[D"
TAIL = 8  # lines from the bottom in which an interface shows how it is
REACH = 60  # lines above its options in which a dialog's question may stand
LONGEST_NOTICE = 4  # lines
MOST_PRESSES = 3  # of the keys that answer one dialog


class Dialog(msgspec.Struct, frozen=True):
    """A question of the interface, and the class of what it asks for."""

    kind: str
    """`edit` a file, `run` a command, `trust` a folder."""
    question: re.Pattern[str]
    near: bool = True
    """Whether the question stands right above its options. Between the two an agent's own text may
    stand, which could ask a question of its own: a far one must be the only one."""


class Screen(msgspec.Struct, frozen=True):
    """How one CLI draws. Patterns are for single lines, without a box's borders."""

    cursor: str
    """The glyph before the marked option."""
    footer: re.Pattern[str] | None
    """The last line below a dialog's options; None when it is the bottom of its box."""
    dialogs: tuple[Dialog, ...]
    yes: re.Pattern[str]
    """The options that say yes to this one thing and to nothing later."""
    working: re.Pattern[str]
    ready: re.Pattern[str]
    below: bool = False
    """Whether it says how it is below the line for input, where no output can stand."""
    limit: re.Pattern[str] | None = None
    fatal: re.Pattern[str] | None = None
    bar: bool = False
    """The options stand side by side, and the marked one differs only by its background."""
    draft: re.Pattern[str] | None = None
    """The input line; group 1 is the text in it. None: the last box above the status line."""
    edge: int = 0
    """Maximum distance in lines from the input line to the edge above it; 0: no edge is needed."""
    head: re.Pattern[str] | None = None
    """The first line of a dialog that has no upper edge."""
    notice: re.Pattern[str] | None = None
    """The first line of a message that the interface may show below a dialog's box."""
    stacked: bool = False
    """Whether a second dialog may be open above the one at the bottom. Keys would then reach the
    wrong one, so no option is selected."""


class Reading(msgspec.Struct, frozen=True):
    state: State
    question: str | None = None
    kind: str | None = None
    """The class of what is asked; None when it is none that a policy can allow."""
    options: list[str] = []
    """Empty in `needs_input`: the options are not readable, or two dialogs are open."""
    marked: int | None = None
    """The option that Enter selects; None when the mark is not visible."""
    subject: list[str] = []
    """What is asked about, line by line as the dialog shows it."""
    draft: str | None = None
    """The text in the input line, or its placeholder; None when there is no input line."""
    answer: str | None = None
    """The keys that say yes; None when a person must decide."""
    detail: str | None = None
    """Of a limit or a fatal error: the words."""


_line = re.compile
_ONCE = r"^(?:\d+\. )?(?:Yes|Allow once|Yes, allow once|Yes, proceed)(?: \([a-z]\))?$"

SCREENS: dict[str, Screen] = {
    "claude": Screen(
        cursor="❯",
        footer=_line(r"^(?:Enter to confirm · )?Esc to cancel(?: · .*)?$"),
        dialogs=(
            Dialog("edit", _line(r"^Do you want to (?:create|make this edit to|overwrite) .+\?$")),
            Dialog("run", _line(r"^Do you want to proceed\?$")),
            Dialog("trust", _line(r"^Security guide$")),
        ),
        yes=_line(_ONCE + r"|^Yes, I trust this folder$"),
        working=_line(r"^\S.* · esc to interrupt(?: · .*|\s{2,}.*)?$"),
        ready=_line(r"^❯(?:\s.*)?$"),
        draft=_line(r"^❯\s?(.*)$"),
        edge=1,
        below=True,
        limit=_line(r"^⚠ Usage limit reached · limit resets .+$"),
        fatal=_line(r"^error: (?:unknown option|option) .+$"),
    ),
    "codex": Screen(
        cursor="›",
        footer=_line(r"^Press enter to (?:confirm or esc to cancel|continue)$"),
        dialogs=(
            Dialog("run", _line(r"^Would you like to run the following command\?$"), near=False),
            Dialog("edit", _line(r"^Would you like to make the following edits\?$"), near=False),
        ),
        yes=_line(_ONCE),
        working=_line(r"^[•◦] Working \(.*esc to interrupt\)$"),
        ready=_line(r"^›(?: .*)?$"),
        draft=_line(r"^› ?(.*)$"),
        limit=_line(r"^■ You.ve hit your usage limit\..*$"),
        fatal=_line(r"^Error loading configuration: .+$"),
    ),
    "gemini": Screen(
        cursor="●",
        footer=None,
        dialogs=(
            Dialog("edit", _line(r"^Apply this change\?$")),
            Dialog("run", _line(r"^Allow execution of.+\?$")),
            Dialog("trust", _line(r"^Do you trust the files in this folder\?$"), near=False),
        ),
        yes=_line(_ONCE + r"|^1\. Trust folder \(.*\)$"),
        working=_line(r"^[⠀-⣿] .*\(.*esc to cancel.*\).*$"),
        ready=_line(r"^[>!*](?:\s.*)?$"),
        draft=_line(r"^[>!*]\s*(.*)$"),
        edge=3,  # a line that shows the mode may be in between
        notice=_line(r"^[⚠ℹ] "),
        stacked=True,
    ),
    "copilot": Screen(
        cursor="❯",
        footer=_line(r"^↑/↓ to navigate · enter to select · esc to cancel$"),
        dialogs=(
            Dialog("edit", _line(r"^Do you want to (?:create|edit|overwrite) .+\?$")),
            Dialog("run", _line(r"^Do you want to run this command\?$")),
            Dialog("trust", _line(r"^Do you trust the files in this folder\?$")),
        ),
        yes=_line(_ONCE),
        working=_line(r"^◎ Working\b.* interrupt.*$"),
        ready=_line(r"^❯(?: .*)?$"),
        draft=_line(r"^❯\s?(.*)$"),
        edge=1,
        below=True,
    ),
    "opencode": Screen(
        cursor="",
        bar=True,
        # A narrow terminal cuts off the text after the options.
        footer=_line(r"^Allow once\s+Allow always\s+Reject\s{2,}\S.*$"),
        dialogs=(
            Dialog("edit", _line(r"^→ Edit .+$"), near=False),
            Dialog("run", _line(r"^# Shell command$"), near=False),
        ),
        yes=_line(r"^Allow once$"),
        working=_line(r"^[⬝■]+ +esc interrupt\b.*$"),
        ready=_line(r"^.*\bctrl\+p commands$"),
    ),
}

SCREENS["scripted"] = msgspec.structs.replace(SCREENS["claude"], below=False, edge=0)
SCREENS["qwen"] = msgspec.structs.replace(  # made of Gemini's
    SCREENS["gemini"],
    cursor="›",
    footer=_line(r"^[⠀-⣿] Waiting for user confirmation\.\.\.$"),
    edge=1,
    head=_line(r"^\?\s+\S"),
    stacked=False,
)


def watch(
    screen: Screen,
    lines: list[str],
    policy: frozenset[str] = frozenset(),
    background: Background | None = None,
) -> Reading:
    """What a screen shows, and the keys that answer it when the policy allows its class.

    The same screen gives the same answer each time; `Reader` gives it once per appearance.
    `background` is needed where an option is marked only by colour; without it the first option
    counts as marked.
    """
    rows = _rows(lines)
    dialog = None
    if (end := _end_of_dialog(screen, lines, rows)) is not None:
        shown = rows[:end]
        dialog = _bar(screen, lines, shown, background) if screen.bar else _menu(screen, shown)
    elif screen.below:
        dialog = _bare_menu(screen, rows)
    if dialog is not None:
        answer = None
        if dialog.kind is not None and ("all" in policy or dialog.kind in policy):
            answer = _keys(screen, dialog.options, dialog.marked)
        return Reading(
            "needs_input",
            dialog.question,
            dialog.kind,
            dialog.options,
            dialog.marked,
            dialog.subject,
            answer=answer,
        )
    return msgspec.structs.replace(_status(screen, rows), draft=_draft(screen, lines, rows))


def _status(screen: Screen, rows: list[tuple[int, str]]) -> Reading:
    """Read the state of the interface when no dialog is open."""
    texts = [text for _, text in rows if text]
    if screen.fatal and (at := _find(screen.fatal, texts[-2:])) is not None:
        return Reading("fatal", detail=texts[-2:][at])
    tail = texts[-TAIL:]
    prompt = _line_for_input(screen, rows, tail)
    status = tail[prompt + 1 :] if screen.below and prompt is not None else tail
    if screen.below and prompt is None:
        return Reading("unknown")
    if _find(screen.working, status) is not None:
        return Reading("working")
    if screen.limit and (at := _find(screen.limit, status)) is not None:
        # It may go on on the next line; there is nothing else that the time could be read from.
        return Reading("limit", detail=" ".join(status[at : at + 2]))
    return Reading("unknown" if prompt is None else "ready")


def _line_for_input(screen: Screen, rows: list[tuple[int, str]], tail: list[str]) -> int | None:
    """Where the line for input is; a marked option of a menu may look like it, without its edge."""
    prompt = _find(screen.ready, tail, last=True)
    if prompt is None or not screen.edge:
        return prompt
    at = [number for number, (_, text) in enumerate(rows) if text][-len(tail) :][prompt]
    return prompt if _has_edge(screen, rows, at) else None


def _has_edge(screen: Screen, rows: list[tuple[int, str]], at: int) -> bool:
    above = rows[max(0, at - screen.edge) : at]
    return any(indent == _BEGIN for indent, _ in above)


def _draft(screen: Screen, lines: list[str], rows: list[tuple[int, str]]) -> str | None:
    """Return the text in the input line: the last line of its form, below an edge if it has one.

    A list of commands may be shown below it, so with an edge the whole screen is searched.
    """
    if screen.draft is None:
        return _boxed_draft(lines)
    first = 0 if screen.edge else max(0, len(rows) - TAIL)
    for at in range(len(rows) - 1, first - 1, -1):
        match = screen.draft.match(rows[at][1])
        if match and (not screen.edge or _has_edge(screen, rows, at)):
            return match[1].strip()
    return None


def _boxed_draft(lines: list[str]) -> str | None:
    """The text in the last box that is closed at its bottom; its last line names the model."""
    bottom = next((at for at in range(len(lines) - 1, -1, -1) if _CLOSED.match(lines[at])), None)
    if bottom is None:
        return None
    text: list[str] = []
    for line in reversed(lines[:bottom]):
        if not (box := _BORDERS.match(line)):
            break
        text.insert(0, box[2].strip())
    return " ".join(part for part in text[:-1] if part)


class Shown(msgspec.Struct, frozen=True):
    """A dialog as it stands on the screen."""

    question: str
    kind: str | None
    options: list[str]
    marked: int | None
    subject: list[str]


class Reader:
    """Looks at one run's screen again and again, and answers each dialog once.

    A dialog that was answered and still stands, redrawn or moved, gets no second answer: then a
    person must look. It may be answered again when it has been gone in between. Where nothing has
    moved at all since, the keys were not heard, and `again` gives them once more.
    """

    def __init__(self, screen: Screen, policy: frozenset[str] = frozenset()) -> None:
        self.screen = screen
        self.policy = policy
        self._answered: tuple[str | None, list[str], list[str]] | None = None
        self._keys: str | None = None
        self._presses = 0

    def again(self) -> str | None:
        """The keys that answered the dialog which stands, for a caller who has seen nothing move
        since: interfaces swallow what comes too early. None when that was tried often enough."""
        if self._answered is None or self._presses >= MOST_PRESSES:
            return None
        self._presses += 1
        return self._keys

    def look(self, lines: list[str], background: Background | None = None) -> Reading:
        reading = watch(self.screen, lines, self.policy, background)
        if reading.answer is None:  # no dialog, or one that a person must answer
            self._answered = None
            return reading
        this = (reading.question, reading.options, reading.subject)
        if self._answered == this:
            return msgspec.structs.replace(reading, answer=None)
        self._answered = this
        self._keys, self._presses = reading.answer, 1
        return reading


_BORDERS = re.compile(r"^(\s*)[│┃](.*?)[│┃]?\s*$")
_BOTTOM = re.compile(r"^\s*╰─+╯\s*$")
_CLOSED = re.compile(r"^\s*╹▀+\s*$")
_EDGE = re.compile(r"^\s*[╭╰╮╯─╌╹▀]{3,}\s*$")
_TOP = re.compile(r"^\s*(?:╭─{20,}|─{20,})")
_BEGIN = -1  # where a line would have its indentation: here a box or a dialog begins


def _rows(lines: list[str]) -> list[tuple[int, str]]:
    """Each line's indentation and text, out of its box; an edge of a box is an empty line."""
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


def _end_of_dialog(screen: Screen, lines: list[str], rows: list[tuple[int, str]]) -> int | None:
    """The number of rows up to the end of the dialog at the bottom; None without a dialog."""
    if screen.footer is not None:
        return len(rows) if rows and screen.footer.match(rows[-1][1]) else None
    bottoms = [at for at, line in enumerate(lines) if _BOTTOM.match(line)]
    if not bottoms:
        return None
    below = [line.strip() for line in lines[bottoms[-1] + 1 :] if line.strip()]
    is_notice = screen.notice is not None and below and screen.notice.match(below[0])
    if below and not (is_notice and len(below) <= LONGEST_NOTICE):
        return None
    return min(bottoms[-1], len(rows))


def _bare_menu(screen: Screen, rows: list[tuple[int, str]]) -> Shown | None:
    """Read a menu without a footer, at the very bottom and below an edge: a question other than a
    permission, shown in place of the input line. No policy answers it."""
    found = _last_options(screen, rows)
    if found is None:
        return None
    at, options, marked = found
    above = rows[max(0, at - REACH) : at]
    texts = [text for _, text in above if text]
    if not texts or not any(indent == _BEGIN for indent, _ in above):
        return None
    subject = _subject(screen, above, texts[-1])
    if not subject:
        return None  # no question between the edge and the options
    return Shown(subject[0], None, options, marked, subject)


def _last_options(screen: Screen, rows: list[tuple[int, str]]) -> tuple[int, list[str], int] | None:
    """Return the first row of the options at the end, their labels and the marked one."""
    end = len(rows)
    while end and not rows[end - 1][1]:
        end -= 1
    begin = end
    while begin and rows[begin - 1][1]:
        begin -= 1
    found = _options(screen.cursor, rows[begin:end])
    return None if found is None else (begin + found[0], found[1], found[2])


def _menu(screen: Screen, rows: list[tuple[int, str]]) -> Shown | None:
    found = _last_options(screen, rows[: len(rows) - (screen.footer is not None)])
    if found is None:
        return None
    at, options, marked = found
    above = rows[max(0, at - REACH) : at]
    question, kind = _asked(screen, [text for _, text in above if text])
    if kind is None and not _numbered(options):
        return None
    subject = _subject(screen, above, question)
    if screen.stacked and _has_menu(screen.cursor, rows[:at]):
        return Shown(question, None, [], None, subject)
    return Shown(question, kind, options, marked, subject)


def _has_menu(cursor: str, rows: list[tuple[int, str]]) -> bool:
    """Whether a menu with a marked, numbered option stands in these rows."""
    marked = re.compile(rf"^{re.escape(cursor)} \d+\. ")
    numbered = re.compile(r"^\d+\. ")
    return any(
        marked.match(text)
        and any(numbered.match(near) for _, near in rows[max(0, at - 1) : at + 2])
        for at, (_, text) in enumerate(rows)
    )


def _subject(screen: Screen, above: list[tuple[int, str]], question: str) -> list[str]:
    """Return the dialog's lines above its options, from its upper edge, its first line or its
    question."""
    lines: list[str] = []
    for indent, text in above:
        is_head = screen.head is not None and screen.head.match(text) is not None
        if indent == _BEGIN or is_head or (text == question and not lines):
            lines = []
        if text:
            lines.append(text)
    at = lines.index(question) if question in lines else 0
    return lines[at:] if at < len(lines) - 1 else lines


def _options(cursor: str, block: list[tuple[int, str]]) -> tuple[int, list[str], int] | None:
    """Where the options begin, what they say and which is marked: exactly one is."""
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
            return None  # something else stands between them
    return (first, options, marked) if len(options) > 1 else None


def _numbered(options: list[str]) -> bool:
    return all(option.startswith(f"{number}. ") for number, option in enumerate(options, 1))


def _bar(
    screen: Screen, lines: list[str], rows: list[tuple[int, str]], background: Background | None
) -> Shown:
    options = [part for part in re.split(r"\s{2,}", rows[-1][1]) if part][:3]
    above = rows[-REACH:-1]
    question, kind = _asked(screen, [text for _, text in above if text])
    marked = 0 if background is None else _coloured(lines, len(rows) - 1, options, background)
    return Shown(question, kind, options, marked, _subject(screen, above, question))


def _coloured(lines: list[str], row: int, options: list[str], background: Background) -> int | None:
    """Return the only option with a background of its own; None unless there is exactly one."""
    colours: list[str] = []
    column = 0
    for option in options:
        column = lines[row].index(option, column)
        colours.append(background(row, column))
        column += len(option)
    alone = [at for at, colour in enumerate(colours) if colours.count(colour) == 1]
    return alone[0] if len(alone) == 1 and len(set(colours)) == 2 else None


def _asked(screen: Screen, above: list[str]) -> tuple[str, str | None]:
    """The question that the lines above the options ask, and its class."""
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


def _keys(screen: Screen, options: list[str], marked: int | None) -> str | None:
    wanted = next((at for at, label in enumerate(options) if screen.yes.match(label)), None)
    if wanted is None or marked is None:
        return None
    return moves(screen, marked, wanted) + ENTER


def moves(screen: Screen, marked: int, wanted: int) -> str:
    """The arrow keys that move the mark from one option to another."""
    forward, back = (RIGHT, LEFT) if screen.bar else (DOWN, UP)
    way = wanted - marked
    return (forward if way > 0 else back) * abs(way)


def _find(pattern: re.Pattern[str], texts: list[str], *, last: bool = False) -> int | None:
    found = [at for at, text in enumerate(texts) if pattern.match(text)]
    return found[-1 if last else 0] if found else None
