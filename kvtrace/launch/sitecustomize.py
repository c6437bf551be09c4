"""What every Python below `kvtrace run` executes first: a mark that it was here, then who was first before.

vLLM asks for its plugins by itself; LMCache does not, so that its first import arms us (Armed).

Copied into the private folder on PYTHONPATH (see bootstrap.py), never imported from the package. It shadows
another `sitecustomize`, such as Debian's, and therefore imports that one; what that one raises is raised, as
if we were not there. It must break no interpreter: its syntax is that of every Python, ours is guarded.
"""

import os
import sys


def _arrive(here):
    # type: (str) -> None
    """Append who runs to the file `reached`: kvtrace says so when a command recorded nothing."""
    line = "%d\t%d.%d.%d\t%s\n" % ((os.getpid(),) + sys.version_info[:3] + (sys.executable,))
    descriptor = os.open(os.path.join(here, "reached"), os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, line.encode("utf-8", "replace"))
    finally:
        os.close(descriptor)


class Armed(object):
    """A finder that finds nothing: it sees an engine's first import, and has it wrapped from there on."""

    def __init__(self):
        # type: () -> None
        self._waiting = {"lmcache": "kvtrace.instrument.lmcache", "mooncake": "kvtrace.instrument.mooncake"}
        for name in ("nixl", "nixl_cu12", "nixl_cu13", "nixl_rocm"):
            self._waiting[name] = "kvtrace.instrument.nixl"
        self._waiting["sglang"] = "kvtrace.instrument.sglang"

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002 - the signature of a finder
        # type: (str, object, object) -> None
        """None, always. It stays where it is: others look at the list of finders while we are in it."""
        if name in self._waiting:
            ours = self._waiting.pop(name)
            try:
                __import__(ours)
                sys.modules[ours].install()
            except Exception:  # noqa: BLE001, S110 - the engine starts, whatever is wrong with us
                pass


def _chain(place):
    # type: (int) -> None
    """Import the sitecustomize that we shadow, as if our entry of sys.path were not there.

    Afterwards it is the one in sys.modules.
    """
    ours = sys.modules.pop("sitecustomize", None)
    entry = sys.path.pop(place)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours
    finally:
        sys.path.insert(place, entry)


_place = -1
try:
    _here = os.path.dirname(os.path.abspath(__file__))
    _place = [os.path.abspath(_entry) for _entry in sys.path].index(_here)
    _arrive(_here)
    if os.environ.get("KVTRACE_OUT"):
        sys.meta_path.insert(0, Armed())
except Exception:  # noqa: BLE001, S110 - an interpreter starts, whatever became of our folder
    pass
if _place >= 0:
    _chain(_place)
