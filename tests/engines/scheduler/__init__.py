"""vLLM's own Scheduler without an engine around it: every state a request can wait in, in milliseconds.

`play.py` runs inside the engines' interpreter, where a fake connector answers as each case needs it; the
tests read the run that it recorded.
"""
