"""LMCache's server without an engine: started by `kvtrace run`, driven by LMCache's own benchmark client."""
