"""The Directory: it places routers and breakers on actors, moves them, and sends configuration changes to the logs.
In: greetings of actors that came up, change ids and questions for owners from replicas, and rows of the store. Out:
assignments under new epochs, configuration entries for routers, and retention floors for the logs.

Public: `host.DirectoryHost`, `retention.Retention`.
"""
