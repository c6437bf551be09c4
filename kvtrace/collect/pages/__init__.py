"""Pages that are asked for again and again: metrics as Prometheus reads them, and status pages.

    fetching.py   one page: so long at most, in so much time at most
    polling.py    a thread a page
    metrics.py, status.py    pages -> rows, by the importer's decoders

A page that cannot be had is counted, with the times between which that was so, and asked for again.
"""
