"""Work on recorded samples: backtests, backfills, exports and reports. In: files, frames or a service's own log of
samples, and rules to try. Out: transitions and scores, events of history, Parquet files, and a page.

Public: `away.Away`, `away.away`, `away.joined`, `backtest.Backtest`, `backtest.BacktestWarning`, `backtest.backtest`,
`backtest.source_of`, `candidates`, `export`, `frames`, `planned`, `recorded.of_breaker`, `recorded.of_router`,
`recorded.recorded`, `rules`.
"""
