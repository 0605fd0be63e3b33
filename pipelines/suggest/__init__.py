"""Thresholds and windows out of history, with labelled failures or with a budget of trips. In: samples in memory, a
rule whose threshold is wanted or none, and labels. Out: rules with what they would have done, why, and how wide their
plateau is.

Public: `suggestion.Invalid`, `suggestion.Suggestion`, `suggestion.suggest`, `threshold.threshold_of`.
"""
