"""Conversion of rows to Plotly figures: plain dicts, no drawing and no database.

A figure is `{"data", "layout", "legend", "table"}`. `data` and `layout` are Plotly's; colours are
custom properties of the style sheet ("--job-3"), which the page resolves for its theme. Times are
milliseconds since the epoch on axes of type "date"; the page shifts them into the user's zone.
`table` holds the same values as text, for use without the chart. Names are escaped inside traces,
since Plotly interprets some HTML there, and plain elsewhere.
"""
