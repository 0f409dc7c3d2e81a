"""Worktrees of agents: create, find, reuse and delete them.

worktrees               create, inspect and remove a worktree, also beside concurrent calls
worktree_registry       worktrees as their repository registers them, whatever their files claim
worktree_pool           files of removed worktrees, reused to create the next one faster
worktree_leftovers      orphans, interrupted removals, and disk usage
"""
