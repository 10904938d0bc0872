"""Turn rows into Plotly figures: plain dicts, no drawing and no database.

A figure is `{"data", "layout", "legend", "table"}`. `data` and `layout` are Plotly's; colours are
custom properties of the style sheet ("--job-3"), which the page resolves for the theme it is in.
Times are milliseconds since the epoch on axes of type "date"; the page shifts them into the user's
zone. `table` holds the same figures as text for those who cannot or do not want to see the chart.
Names are escaped inside traces, since Plotly reads a little HTML there, and plain elsewhere.
"""
