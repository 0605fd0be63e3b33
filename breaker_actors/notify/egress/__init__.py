"""The way out for notifications: HTTP and SMTP that connect only to addresses the policy allows. In: rendered requests
and mails with their destination. Out: what became of each attempt (sent, try again, or never), with a short excerpt of
the receiver's answer.

Public: `guarded_backend.Resolve`, `http.Poster`, `http.trusted`, `http_outcome.judge`, `policy`, `smtp.Mailer`.
"""
