"""The plugin inside a real vLLM: as a library, in one process, and as a server."""
