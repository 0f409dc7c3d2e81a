"""Workflows over several concepts, processes and files.

A service is a function or class over an open `Database`. The API (`corral.api`) declares which of
them are public; services never import it.
"""
