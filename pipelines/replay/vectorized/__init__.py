"""Replay over columns: window values are looked up in prefix columns instead of kept, with results exact to the bit.
In: chunks of samples as columns, and many rules at once. Out: the transitions the reference finds, or word that a rule
needs the reference.

Public: `aggregates`, `engine`, `exact_sums.TooWide`, `judge`, `order_statistics.Cuts`, `prefix_columns.PrefixColumns`.
"""
