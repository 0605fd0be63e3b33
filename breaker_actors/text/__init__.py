"""Text from outside made safe: escaping for each medium, redaction of secrets, and globs; and numbers of things in
sentences; all pure. In: names, addresses, patterns and configurations as callers sent them. Out: the same text as HTML,
CSV, a log line or a token takes it, with secrets masked, and whether a glob matches it.

Public: `counting`, `escaping`, `globs`, `redaction`.
"""
