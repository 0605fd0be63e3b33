"""The `breakers` command: one module for each group of subcommands. In: arguments, files of samples, a data directory,
or the address of a running service. Out: tables, JSON or files, and an exit code with one line on stderr for an error.

Public: `main.main`, `planning.plan`.
"""
