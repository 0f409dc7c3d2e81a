"""Schedules and timers: letters that are put at times given by a rule."""
