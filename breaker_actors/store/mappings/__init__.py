"""What a mapping says, as pure values without I/O: which series of an open protocol it takes, and what they become. In:
fields as callers sent them and rows stored. Out: matchers, rules and targets, and why they can't be taken.

Public: `model`.
"""
