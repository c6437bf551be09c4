"""KV bytes from a model's configuration: pure arithmetic, the standard library alone.

    configuration.py  a Hugging Face config.json; a look-up that fails names the field
    storage.py        what one number, and one record, of a cache takes
    layers.py         what one layer keeps: records a token, or a state a sequence
    families/         one file a way in which configurations describe their layers
    parallel.py       which layers, and which share of one, a rank holds
    capacity.py       the sums

What a configuration does not say, or says in a way not known here, is an error that names the field.
"""

from __future__ import annotations

from kvtrace.geometry.capacity import Capacity, capacity, groups
from kvtrace.geometry.model import Model, model_of, read_model
from kvtrace.geometry.parallel import Placement

__all__ = ["Capacity", "Model", "Placement", "capacity", "groups", "model_of", "read_model"]
