"""Letters to be put later: timers once, schedules again and again."""
