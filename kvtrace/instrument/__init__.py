"""Inside an engine's process: what is patched or subscribed to, and nothing else.

Standard library alone, parses on Python 3.10, never raises into the engine, never blocks it, counts what it
loses. Importing this package imports nothing of an engine; the first engine module to be loaded is the one
that an instrument wraps.

    wrapping.py    a hook after or around a method of the engine, so that no hook can hurt it
    vllm/          vLLM: one general plugin, run in the API server, EngineCore and every worker
"""
