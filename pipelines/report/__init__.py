"""The page of a backtest: one HTML file that works offline. In: a finished backtest and a second pass over its
samples. Out: HTML with tables and charts.

Public: `notebook.html_of`, `page.page_of`, `page.write_report`.
"""
