"""The Notifier: it claims deliveries from the outbox, renders them, and sends them with retries and a circuit per
channel. In: nudges of the Journal, claimed rows of the outbox, and test notifications of replicas. Out: requests and
mails to receivers, and the result of every attempt in the store.

Public: `circuit.Circuit`, `lazy_sender.late_sender`, `limits.Pace`, `model.NOBODY`, `model.Destination`,
`model.ExaminingSender`, `model.Sender`, `model.sample`, `notifier.NotifierHost`, `nudge.Nudge`, `sender.open_sender`.
"""
