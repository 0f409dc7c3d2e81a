"""Git repositories: run git, read commits, merge, and isolate the commits of sandboxed agents.

git                         run git with a controlled environment; find the root of a worktree
git_history, diff_chunks    commits and diffs
commits                     create commits of selected files, and try merges without side effects
merges                      merge a commit into a branch, or graft parts of it onto a worktree
submodules                  submodules of worktrees
snapshot_repositories       private repositories for folders that are in no git repository
private_git                 the private repository in which a sandboxed attempt commits
"""
