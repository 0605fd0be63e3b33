"""The HTTP side: the Quart app of a replica, what launches the service, and the `breakers` command. In: requests of
clients behind HAProxy, and commands of operators. Out: answers, server-sent events, and a running service.

Public: `app.create_app`, `auth`, `cluster`, `context`, `problems`.
"""
