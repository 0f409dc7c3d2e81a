"""Alerts: notify people and programs of events, once for each occurrence."""
