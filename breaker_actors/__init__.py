"""The service without HTTP: the pure core, what is kept durably, and the actors that evaluate breakers. In: samples,
configuration changes and questions from `api`, and recorded samples from `pipelines`. Out: committed states and
transitions, notifications and metrics.

Public: `clock`, `errors`, `messages`, `own_path`, `persistence`, `settings`.
"""
