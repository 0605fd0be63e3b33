"""What a mute is, as pure values: whom it matches, and when it is active. In: matchers, schedules, what is known of
breakers and channels, and instants. Out: yes or no, and when that changes. No I/O, no clock.

Public: `matching.BreakerFacts`, `matching.ChannelFacts`, `matching.Matcher`, `schedule.Schedule`, `schedule.Window`.
"""
