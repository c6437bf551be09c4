"""Spools of engines' processes: what the recorder appends (schema/frames.py), read and turned into a run.

    bytes ─► frames ─► batches of one shape ─► rows of tables ─► Parquet

decode.py      bytes -> frames: SpoolReader         frame.py       frames -> Arrow: together
source.py      a file that grows                    texts.py       interned texts of an epoch
values.py      one column -> Arrow                  pairing.py     open, update, close -> one row
rows.py        unix times, maps, who recorded       about.py       what a spool says of its process
following.py   what is new in one spool, once       checkpoints.py what is open at some place of it
liveness.py    whether its process still writes     locking.py     one converter at a time
conversion.py  several spools -> parts of tables    drain.py       the same for a run, as it grows
view.py        a run at one moment, for a reader    finishing.py   what is done once, at the end
"""
