"""One pass of rules over samples: the reference that drives the core's machine, and the vectorised engine. In: batches
in order of arrival, and rules. Out: transitions, times in each state, scores against labels, and points for a chart.

Public: `downsample.FINE_SPANS`, `downsample.Sketch`, `memory`, `results`, `run`, `scoring`.
"""
