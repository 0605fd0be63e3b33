"""What an Arrow stream may hold. Beyond a bound the request is refused with PayloadTooLarge."""

from __future__ import annotations

ROWS_MAX = 100_000
"""Samples of one request."""
FIELDS_MAX = 64
"""Columns of a stream."""
MESSAGES_MAX = 1_000
"""Batches of rows and of dictionaries together: each costs some 100 us, however little it holds."""
METADATA_BYTES_MAX = 1 << 20
"""Metadata of one message: pandas writes about 250 bytes a column."""
ENTRIES_MAX = 200_000
"""Entries of all dictionaries of a request."""
TEXT_BYTES_MAX = 512
"""Of a router_id or metric; longer ones are bad without being looked at. 128 characters have at most so many."""
NAME_BYTES_MAX = 1_024
"""Of a column's name."""
NAME_SHOWN_MAX = 64
"""Characters of it in answers."""
