"""What every handler reaches: the parts of its replica, and the current request with the one way in through key, right
and project. In: the parts a replica is made of, and the request that is being answered. Out: projects within the
caller's reach, bodies, budgets, and answers told in the caller's turns.

Public: `appended`, `current`, `examining`, `fields`, `matched`, `payloads`, `previewing`, `receiving`, `replica`.
"""
