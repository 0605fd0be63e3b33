"""What a mute is, as pure values without I/O or clock: whom it matches, and when it is active. In: matchers, schedules,
what is known of breakers and channels, and instants. Out: yes or no, and when that changes.

Public: `matching`, `schedule`.
"""
