"""Operations of `store.schedules` and `store.timers`."""

from corral.api import agent_rules as rules
from corral.api.operation import Resource, operation, read, write
from corral.api.policy import FOR_DAEMON
from corral.domain.chat.conversations import scheduled_prompts
from corral.domain.schedules import edit as schedules_edit
from corral.domain.schedules import occurrences, ops
from corral.domain.schedules.model import Occurrence


class Schedules(Resource):
    """Schedules: rules by which letters are put repeatedly."""

    noun = "schedule"
    subjects = ("schedule", "id")

    create = write(ops.create_schedule, actor=("sender",))
    prompt = write(scheduled_prompts.add_scheduled_prompt, actor=("agent",))
    edit = write(schedules_edit.edit_schedule, repeatable=True, in_run="edit_schedule")
    get = read(ops.get)
    list = read(ops.list_schedules, mode="one")
    pause = write(ops.pause)
    resume = write(ops.resume)
    run = write(ops.fire_now)
    delete = write(ops.cancel)
    fire_due = write(ops.fire_due, repeatable=True, local=FOR_DAEMON)
    next_at = read(ops.find_next_at, mode="one")
    history = read(occurrences.list_occurrences)
    next_script = read(occurrences.find_next_script_at, mode="one")

    @operation(local=FOR_DAEMON)
    def run_script(self, *, owner: str) -> Occurrence | None:
        """Run the oldest pending script, and put or skip its letter depending on the result.

        Returns None when no script is pending. A script whose process crashed runs again; its
        letter is put at most once.
        """
        from corral.services.schedules import scripts

        return scripts.run_next(self._database, owner)


class Timers(Resource):
    """Timers: letters that are put once, later."""

    noun = "timer"
    subjects = ("id",)

    set = write(ops.set_timer, actor=("sender",), agent=rules.as_timer_sender)
    get = read(ops.get)
    list = read(ops.list_timers, mode="one")
    cancel = write(ops.cancel_timer)
