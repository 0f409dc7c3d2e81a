"""Processes of this machine: identify, find, start, watch and end them.

process                 identity, liveness, signals, process trees and resource usage
process_marks           marks by which all processes of a run are found
process_ancestry        the ancestors of a process
child_processes         child processes that are reaped later
subprocesses            run programs, and `corral` commands in the background
exit_files              the exit status of an agent, written by its guard
socket_peers            the process at the other end of a local connection
ports                   local TCP ports for programs that take the port as a parameter
"""
