"""`breakers demo`: a real latency series through the whole service, as a client sees it."""
