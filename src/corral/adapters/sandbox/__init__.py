"""Sandboxes: confine a program to its folder, and handle the files that it wrote.

sandbox                 wrap a command with Bubblewrap or Landlock
landlock                the launcher that confines itself with Landlock
private_home            the home folder of a sandboxed run
untrusted_files         read and write files in a folder that a sandboxed program can write
checks, check_guard     run a check, sandboxed if needed, and end all processes that it started
"""
