"""Spools of engines' processes: what the recorder appends (schema/frames.py), read and turned into a run.

decode.py    bytes -> frames: SpoolReader         frame.py    frames -> Arrow: together
source.py    a file that grows                    texts.py    interned texts of an epoch
values.py    one column -> Arrow                  pairing.py  open, update, close -> one row
drain.py     spools -> Parquet, exactly once
"""
