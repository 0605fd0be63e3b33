"""The way out for notifications: HTTP and SMTP that connect only to addresses the policy allows, and apprise in a
process that reaches nothing but these. In: rendered requests, mails and notices with their destination. Out: what
became of each attempt (sent, try again, or never), with a short excerpt of the receiver's answer.

Public: `apprise.Courier`, `guarded_backend.Resolve`, `http.Poster`, `http.trusted`, `http_outcome.judge`, `policy`,
`smtp.Mailer`.
"""
