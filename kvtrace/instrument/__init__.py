"""Inside an engine's process: what is patched or subscribed to, and nothing else.

Standard library alone, parses on Python 3.10, never raises into the engine, never blocks it, counts what it
loses. Nothing of an engine is imported on its behalf: a module is wrapped when the engine imports it.

    wrapping.py    a hook after or around a method of the engine, so that no hook can hurt it
    importing.py   an action when a module of the engine is there
    vllm/          vLLM: one general plugin, run in the API server, EngineCore and every worker
"""
