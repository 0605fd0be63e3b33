"""What a replica takes in and gives out at a time: bounds for bodies, work and answers, and shares for each caller. In:
bytes of bodies with the caller they come from, and the size of answers on their way out. Out: room or a refusal, and
plain bodies within bounds.

Public: `addresses`, `inflate`, `intake`, `outgoing`, `read_budget`, `shares`, `weight`.
"""
