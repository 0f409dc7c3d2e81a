"""Workflows of chat, which use several transactions, files or a platform.

channels            open the adapter of a channel, and check its connection
inbound             receive events of a platform, with their attachments
turn_start          start chat turns: letters become the prompt of a run
turn_finish         finish chat turns: the result of a run becomes the answer
turns               errors of chat turns, and machines that are considered gone
delivery            send the outbound messages to their platforms
attachments         private copies of the files that agents send and receive
sandbox_sync        synchronize a sandboxed session with its two files
session_folder      the folder of a sandboxed session
session_sandbox     the command line and environment of a sandboxed agent
upkeep              periodic work that needs no platform
model               results of these workflows
"""
