"""What a notification looks like and how one attempt to send it is made.

`model.py` has the values, `wording.py` the words, `slack.py`, `pagerduty.py`, `mail.py` and `webhook.py` one rendering
each (pure), `checks.py` what a channel's config must hold, `policy.py` and `guarded.py` where requests may go,
`posting.py`, `mailing.py` the I/O, and `sending.py` the one `Sender` over all of it.
"""
