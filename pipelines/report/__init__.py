"""The page of a backtest, one HTML file that works offline, and remarks on what is probably not meant. In: a finished
backtest and a second pass over its samples. Out: HTML with tables and charts, and sentences.

Public: `notebook.html_of`, `page.page_of`, `page.pages_of`,
`page.write_report`, `remarks.remarks_on_labels`, `remarks.remarks_on_samples`,
`remarks.remarks_over`.
"""
