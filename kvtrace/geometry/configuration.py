"""A Hugging Face config.json: looked up by name, and a look-up that fails names the field.

A multimodal configuration keeps its language model under `text_config`; the cache is that one's, and what it
does not say (the dtype, the quantisation) is looked up in the whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MOST_BYTES = 1 << 24
"""A configuration is some kilobytes; what is larger is another file."""
MOST_COUNT = 1 << 40
"""No dimension is larger; keeps hostile numbers out of the sums."""
MOST_LAYERS = 1 << 16


@dataclass(frozen=True, slots=True)
class Configuration:
    """The fields of one language model; `where` begins every error."""

    where: str
    fields: Mapping[str, Any]
    whole: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    filled_in: Mapping[str, Any] = field(default_factory=dict)
    """What the family's own configuration class fills in where the file is silent."""

    def filling_in(self, defaults: Mapping[str, Any]) -> Configuration:
        """The same with the defaults of a family's own configuration class."""
        return Configuration(self.where, self.fields, self.whole, self.prefix, defaults)

    def saying(self, others: Mapping[str, Any]) -> Configuration:
        """The same with other values of some fields: a layer that differs from the rest."""
        return Configuration(self.where, {**self.fields, **others}, self.whole, self.prefix, self.filled_in)

    def get(self, name: str) -> Any:
        """A field as it stands, None where nothing is said."""
        value = self.fields.get(name)
        return self.filled_in.get(name) if value is None else value

    def anywhere(self, name: str) -> Any:
        """A field of the language model, else of the whole configuration."""
        value = self.get(name)
        return self.whole.get(name) if value is None else value

    def count(self, *names: str) -> int:
        """A positive whole number under the first of these names that is there.

        Raises:
            InputError: under none of them, or it is no such number.
        """
        said = next((name for name in names if self.get(name) is not None), None)
        if said is None:
            self.refuse(names[0], f"is missing{_or(names[1:])}")
        return self._whole(said, least=1)

    def count_or_none(self, name: str) -> int | None:
        """A positive whole number; None for what is missing, null or 0 (which means off)."""
        value = self.get(name)
        if value is None or (isinstance(value, int) and not value):
            return None
        return self._whole(name, least=1)

    def number_or(self, name: str, default: int) -> int:
        """A whole number from 0; the default where nothing is said."""
        return default if self.get(name) is None else self._whole(name, least=0)

    def texts(self, name: str, layers: int) -> tuple[str, ...] | None:
        """A list of words, one a layer; None where nothing is said.

        Raises:
            InputError: it is no list of words, or has another length than there are layers.
        """
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            self.refuse(name, "is no list of words")
        if len(value) != layers:
            self.refuse(name, f"names {len(value)} layers, num_hidden_layers says {layers}")
        return tuple(value)

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers from 0; None where nothing is said."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(_is_count(each) for each in value):
            self.refuse(name, "is no list of whole numbers from 0")
        return tuple(value)

    def layers(self) -> int:
        """`num_hidden_layers`."""
        found = self.count("num_hidden_layers", "n_layer")
        if found > MOST_LAYERS:
            self.refuse("num_hidden_layers", f"is {found}, more than any model has")
        return found

    def inside(self, name: str) -> Configuration:
        """An object that is a field of this one."""
        value = self.get(name)
        if not isinstance(value, dict):
            self.refuse(name, "is missing" if value is None else "is no object")
        return Configuration(self.where, value, self.whole, f"{self.prefix}{name}.")

    def refuse(self, name: str, why: str) -> NoReturn:
        """Raise the error that names a field."""
        raise InputError(f"{self.where}: {self.prefix}{name}: {why}.")

    def _whole(self, name: str, *, least: int) -> int:
        value = self.get(name)
        if not _is_count(value) or value < least:
            self.refuse(name, f"is {json.dumps(value, default=str)[:40]}, not a whole number from {least}")
        return int(value)


def read_configuration(path: Path) -> Configuration:
    """The configuration in a file.

    Raises:
        InputError: it cannot be read, or is no JSON object.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder; name its config.json.")
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path}: is larger than any model configuration; name a config.json.")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no JSON ({error}); name a model's config.json.") from error
    return configuration_of(value, str(path))


def configuration_of(value: Any, where: str) -> Configuration:
    """The language model of a configuration that is read already."""
    if not isinstance(value, dict):
        raise InputError(f"{where}: is no JSON object; name a model's config.json.")
    text = value.get("text_config")
    if isinstance(text, dict):
        return Configuration(where, text, value, "text_config.")
    return Configuration(where, value, value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_COUNT


def _or(names: tuple[str, ...]) -> str:
    return f" (and so is {', '.join(names)})" if names else ""
