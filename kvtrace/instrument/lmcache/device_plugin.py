"""Another way into LMCache: an entry point of `lmcache.device_plugins`, which every LMCache process loads.

A hook that was made for hardware. `kvtrace run --attach-lmcache` declares it for servers that sitecustomize
does not reach; where both reach a process, the second arms what is armed already. The device it has to name
is never there, so that LMCache never chooses it.
"""

from __future__ import annotations

from importlib import import_module

NAME = "kvtrace"
"""Of the entry point, and therefore of the device."""


def __getattr__(name: str) -> object:
    """`KvtraceSpec`, made when LMCache asks for it: its base class is LMCache's, which is being imported.

    Raises:
        AttributeError: it is another name.
    """
    if name != "KvtraceSpec":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvtrace.instrument.lmcache import install

    install()
    base = import_module("lmcache.v1.platform.base.device_spec").DeviceSpec
    named = property(lambda _spec: NAME)
    found = type(
        "KvtraceSpec",
        (base,),
        {
            "__module__": __name__,
            "device_type": named,
            "backend_name": named,
            "torch_module_name": property(lambda _spec: "cpu"),
            "is_available": lambda _spec: False,
        },
    )
    globals()[name] = found
    return found
