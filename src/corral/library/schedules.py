from corral.library.operation import Room, read, write
from corral.rooms.schedules import ops


class Schedules(Room):
    """Letters to be put again and again."""

    noun = "schedule"

    create = write(ops.create_schedule)
    get = read(ops.get)
    list = read(ops.list_schedules, mode="one")
    pause = write(ops.pause)
    resume = write(ops.resume)
    run = write(ops.run)
    delete = write(ops.cancel)
    fire_due = write(ops.fire_due, repeatable=True)
    next_at = read(ops.next_at, mode="one")


class Timers(Room):
    """Letters to be put once, later."""

    noun = "timer"

    set = write(ops.set_timer)
    get = read(ops.get)
    list = read(ops.list_timers, mode="one")
    cancel = write(ops.cancel_timer)
