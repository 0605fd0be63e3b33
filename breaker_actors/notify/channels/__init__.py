"""One renderer for each kind of channel, their shared wording, and the check of a channel's configuration; all pure.
In: messages about a breaker and the configuration of a channel. Out: bodies of webhooks, mails, and the problems of a
configuration by field.

Public: `alertmanager`, `apprise`, `config`, `email`, `pagerduty`, `reach`, `slack`, `webhook`, `wording`.
"""
