"""Judging of a round: ask a judge to rank the attempts, and record its verdicts.

`judge_prompt` builds the prompt of each sample. Every answer is recorded, including an invalid one.
"""

import re
from contextlib import suppress
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec

from corral.adapters.worktrees.worktree_leftovers import delete_tree
from corral.db.database import Database
from corral.db.tx import Tx
from corral.domain.races import round_steps
from corral.domain.races.model import Attempt, JudgeVerdict, Round, VerdictState
from corral.domain.runs.model import Run, RunState
from corral.domain.sessions import ops as sessions
from corral.kernel.errors import Conflict, Held, Invalid, NotFound, Refused
from corral.services.races.judge_prompt import build_prompt
from corral.services.races.paths import sample_folder
from corral.services.races.round_context import RoundContext
from corral.services.runs import dispatch, request
from corral.services.runs.lifecycle import refresh
from corral.services.runs.outputs import read_output_tail
from corral.services.runs.queries import get_run

MAX_ANSWER_BYTES = 256 * 1024


class JudgingStatus(StrEnum):
    DONE = "done"  # nothing is left to be judged
    WAITING = "waiting"  # a judge is running
    CHANGED = "changed"  # a verdict was requested or recorded; read the round again


def advance(database: Database, context: RoundContext) -> JudgingStatus:
    """Request the missing verdicts of a round, or record the answers that have arrived."""
    race, round = context.race, context.round
    candidates = [attempt for attempt in round.attempts if attempt.can_win]
    if race.plan.judge is None or len(candidates) < 2:
        return JudgingStatus.DONE
    ids = {attempt.id for attempt in candidates}
    # Verdicts on other candidates do not count: an attempt was retried since.
    asked = [verdict for verdict in round.verdicts if {*verdict.labels.values()} == ids]
    if len(asked) < race.plan.samples:
        first = len(round.verdicts) + 1
        for number in range(first, first + race.plan.samples - len(asked)):
            _request_verdict(database, context, candidates, number)
        dispatch.start_queued(database)
        return JudgingStatus.CHANGED
    if collect_verdicts(database, context):
        return JudgingStatus.CHANGED
    return JudgingStatus.WAITING if round.has_pending_verdict else JudgingStatus.DONE


def collect_verdicts(database: Database, context: RoundContext) -> bool:
    """Record the answers of judges whose runs have ended; returns whether there were any.

    Deletes the diffs that these judges read. `cleanup.reclaim` deletes them after a crash.
    """
    is_changed = False
    for verdict in context.round.verdicts:
        if verdict.state is not VerdictState.PENDING:
            continue
        if _collect_verdict(database, context.lease, verdict):
            _delete_diffs(context.round, verdict.number)
            is_changed = True
    return is_changed


def _delete_diffs(round: Round, number: int) -> None:
    """Delete the diffs of the nth sample, and the folder of the race if it was the last one."""
    folder = sample_folder(round.race_id, round.number, number)
    with suppress(OSError):
        delete_tree(str(folder))
        folder.parent.rmdir()


# -- the request ---------------------------------------------------------------------------------


def _request_verdict(
    database: Database, context: RoundContext, candidates: list[Attempt], number: int
) -> None:
    """Request a run of the judge and create its verdict, in one transaction.

    A judge that cannot be started leaves a failed verdict with the reason.
    """
    race, round = context.race, context.round
    judge = race.plan.judge
    assert judge is not None
    prompt = build_prompt(race, round, candidates, number)
    fields: dict[str, Any] = {
        "judge": judge,
        "labels": prompt.labels,
        "prompt_hash": sha256(prompt.text.encode(errors="surrogateescape")).hexdigest(),
        "truncated": prompt.truncated,
    }

    def create(tx: Tx) -> JudgeVerdict:
        run = request.request_run(
            tx,
            request.RunRequest(
                prompt=prompt.text,
                title=f"judge: {round.prompt.strip()}",
                agent=judge,
                project=race.project_id,
                dir=prompt.folder,
                secrets=race.plan.secrets,
                timeout_ms=race.plan.timeout_ms,
            ),
        )
        return round_steps.add_verdict(tx, context.lease, run, **fields)

    def create_failed(tx: Tx, reason: str) -> JudgeVerdict:
        verdict = round_steps.add_verdict(tx, context.lease, None, **fields)
        return round_steps.record_verdict(tx, context.lease, verdict, None, None, reason)

    try:
        database.write(create)
    except Held:
        raise
    except (Refused, Invalid, NotFound, Conflict) as error:
        why = f"the judge could not be started: {error}"
        database.write(lambda tx: create_failed(tx, why))
        _delete_diffs(round, number)


# -- the answer ----------------------------------------------------------------------------------


def _collect_verdict(database: Database, lease: Round, verdict: JudgeVerdict) -> bool:
    """Record the answer of a judge if its run has ended; returns whether it has."""

    def record(run: Run | None, ranking: list[list[str]] | None, reason: str) -> bool:
        database.write(
            lambda tx: round_steps.record_verdict(tx, lease, verdict, run, ranking, reason)
        )
        return True

    try:
        assert verdict.run_id is not None
        run = refresh(database, get_run(database, verdict.run_id))
    except NotFound:
        return record(None, None, "the run of the judge was deleted")
    if run.is_live:
        return False
    if run.state is not RunState.COMPLETED:
        reason = f"the run {run.id} ended ({run.state}): {run.reason or run.exit_code}"
        return record(run, None, reason)
    ranking, reason = parse_verdict(_read_answer(database, run), verdict.labels)
    return record(run, ranking, reason)


def _read_answer(database: Database, run: Run) -> str:
    """Return the judge's last message, or the output of a run without a conversation."""
    if run.session_id is not None:
        session = run.session_id
        turns = database.read(lambda tx: sessions.list_latest_turns(tx, session, 50)).items
        messages = [turn.content for turn in turns if turn.role == "assistant" and turn.content]
        if messages:
            return messages[-1]
    with suppress(NotFound, Refused):
        return read_output_tail(database, run.id, MAX_ANSWER_BYTES).decode(errors="replace")
    return ""


def parse_verdict(text: str, labels: dict[str, str]) -> tuple[list[list[str]] | None, str]:
    """Return the ranking in an answer as attempt ids, and its reason.

    An invalid answer gives None and the problem. The ranking must contain every label exactly once,
    because a diff may have made the judge repeat a ranking that the diff's author wrote.
    """
    answer = _find_last_ranking(text)
    if answer is None:
        return None, f"the judge gave no ranking: {text.strip()[-200:] or 'the answer is empty'}"
    try:
        groups = [[group] if isinstance(group, str) else list(group) for group in answer["ranking"]]
        ranked = [label for group in groups for label in group]
        if sorted(ranked) != sorted(labels):
            raise ValueError(f"the answer ranks {ranked}, but the judge was shown {sorted(labels)}")
        ranking = [[labels[label] for label in group] for group in groups if group]
    except (TypeError, ValueError) as error:
        return None, f"the ranking is invalid: {error}"
    explanation = answer.get("reason", answer.get("reasons", ""))
    reason = (
        explanation if isinstance(explanation, str) else msgspec.json.encode(explanation).decode()
    )
    return ranking, _append_legend(reason, labels)


def _append_legend(reason: str, labels: dict[str, str]) -> str:
    """Append the attempts of the labels in a reason.

    They are not inserted into the text: the label A is also a word.
    """
    words = {*re.findall(r"\w+", reason)}
    legend = ", ".join(f"{label}: {id}" for label, id in labels.items() if label in words)
    return f"{reason} [{legend}]" if legend else reason


def _find_last_ranking(text: str) -> dict[str, Any] | None:
    """Return the last JSON object with a ranking in a text."""
    from json import JSONDecoder

    decoder = JSONDecoder()
    for start in reversed([match.start() for match in re.finditer(r"\{", text)][-2_000:]):
        try:
            value, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and "ranking" in value:
            return value
    return None
