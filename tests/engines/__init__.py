"""Real engines on CPU cores: their environment, their start, and what they are made to do.

Nothing in here imports kvtrace: the recordings have to be the engines' own words.
"""
