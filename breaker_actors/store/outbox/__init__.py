"""The notification outbox: claims, the queue of each channel, and what people see of deliveries. In: the Notifier's
epoch, results of attempts, and requests to send again. Out: claimed deliveries in order, their settled state, and
pages of deliveries.

Public: `held`, `judges`, `muting`, `outbox.Outbox`, `payloads`, `subjects`, `trips`.
"""
