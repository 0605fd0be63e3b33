"""`breakers demo`: a real latency series through the whole service, as a client sees it. In: a recorded series and its
labelled failures. Out: a running picture of the states, and a verdict on each trip.

Public: `play.play`.
"""
