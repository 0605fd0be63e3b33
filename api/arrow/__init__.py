"""Arrow IPC streams: what columnar senders say, read exactly and within bounds, with numpy alone; pure. In: plain bytes
of a request body, which may be hostile. Out: columns of samples not yet judged, or one error that says where and what.

Public: `bounds`, `frames`, `texts`.
"""
