"""Text from outside made safe: escaping for each medium, and redaction of secrets; all pure. In: names, addresses and
configurations as callers sent them. Out: the same text as HTML, CSV, a log line or a token takes it, with secrets
masked.

Public: `escaping`, `redaction`.
"""
