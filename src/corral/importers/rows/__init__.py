"""Insertion of imported rows into tables that need more than a plain INSERT."""
