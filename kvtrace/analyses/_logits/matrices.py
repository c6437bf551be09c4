"""Logits wherever they lie: rows of numbers in the pairs file, or a file of them, read a few rows at a time.

.npy           numpy's own, any float or integer
.safetensors   F64, F32, F16 and BF16: a header of JSON and the plain numbers; needs no library
.pt            torch's own, loaded as weights only (no pickled code): the one form that needs torch

A file with several arrays is named `file.safetensors#name`. Relative names begin at the pairs file's folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import tokenize
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.errors import InputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Rows = NDArray[np.float64]

MOST_HEADER_BYTES = 100_000_000
_UNREADABLE = (
    ValueError, TypeError, KeyError, AttributeError, OSError, EOFError, OverflowError, MemoryError,
    RecursionError, SyntaxError, tokenize.TokenError,
)  # fmt: skip
"""What numpy and the parsers behind it raise at headers that nobody wrote in good faith."""
_SAFE_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Logits:
    """A matrix of positions x vocabulary, which gives float64 rows as numpy or torch has them."""

    def __init__(self, values: Any, *, is_bfloat16: bool = False) -> None:
        self._values, self._is_bfloat16 = values, is_bfloat16
        self.positions, self.vocabulary = int(values.shape[0]), int(values.shape[1])

    def rows(self, start: int, stop: int) -> Rows:
        """Some rows as float64."""
        part = self._values[start:stop]
        if hasattr(part, "detach"):
            return part.detach().double().numpy()
        if self._is_bfloat16:  # the upper half of a float32
            part = (part.astype(np.uint32) << 16).view(np.float32)
        return np.ascontiguousarray(part, dtype=np.float64)


def torch_or_none() -> Any | None:
    """The library, when it is installed: imported at the first logits, never before."""
    return importlib.import_module("torch") if importlib.util.find_spec("torch") else None


def matrix_of(given: list[list[float]] | str, folder: Path, request_id: str) -> Logits:
    """The matrix that a pair gives, or names.

    Raises:
        InputError: rows of several lengths, no such file, or one that is no matrix of numbers.
        UsageError: a .pt file where torch is not installed.
    """
    if not isinstance(given, str):
        try:
            values = np.array(given, dtype=np.float64)
        except (ValueError, OverflowError, MemoryError) as error:
            raise InputError(f"{request_id}: its logits are rows of several lengths.") from error
        return Logits(values.reshape(0, 0)) if not given else _matrix(values, request_id)
    name, _, array = given.partition("#")
    path = folder / name
    readers = {".npy": _npy, ".safetensors": _safetensors, ".pt": _pt}
    if path.suffix not in readers:
        raise InputError(f"{path}: logits are .npy, .safetensors or .pt files.")
    if not _is_file(path):
        raise InputError(
            f"{path}: no such file; logits of {request_id} are named from the pairs file's folder."
        )
    return readers[path.suffix](path, array)


def _is_file(path: Path) -> bool:
    """Whether there is one; no name of 5,000 characters is one, nor one that no file system can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _npy(path: Path, _name: str) -> Logits:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except _UNREADABLE as error:
        raise InputError(f"{path}: is no array that numpy wrote without objects.") from error
    return _matrix(values, str(path))


def _safetensors(path: Path, name: str) -> Logits:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if size >= 8 and length <= min(size - 8, MOST_HEADER_BYTES) else None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    if header is None:
        raise InputError(f"{path}: is cut off, or no safetensors file.")
    try:
        entries = {key: entry for key, entry in json.loads(header).items() if key != "__metadata__"}
        entry = _chosen(path, entries, name)
        shape, (start, stop) = tuple(entry["shape"]), entry["data_offsets"]
        dtype = np.dtype(_SAFE_DTYPES[entry["dtype"]])
        fits = all(type(part) is int and part >= 0 for part in (*shape, start, stop)) and (
            start <= stop <= size - 8 - length and math.prod(shape) * dtype.itemsize == stop - start
        )
    except _UNREADABLE as error:
        raise InputError(f"{path}: has no header of F64, F32, F16 or BF16 arrays.") from error
    if not fits:
        raise InputError(f"{path}: its header and its length do not agree.")
    try:
        values = (
            np.zeros(shape, dtype) if stop == start
            else np.memmap(path, dtype=dtype, mode="r", offset=8 + length + start, shape=shape)
        )  # fmt: skip
    except _UNREADABLE as error:
        raise InputError(f"{path}: is no matrix of positions x vocabulary.") from error
    return _matrix(values, str(path), is_bfloat16=entry["dtype"] == "BF16")


def _pt(path: Path, name: str) -> Logits:
    torch = torch_or_none()
    if torch is None:
        raise UsageError(f"{path}: needs torch, which is not installed; pip install 'kvtrace[torch]'.")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise InputError(f"{path}: torch does not load it as weights alone.") from error
    values = found if isinstance(found, torch.Tensor) else _chosen(path, found, name)
    if (
        not isinstance(values, torch.Tensor) or values.ndim != 2 or values.is_complex()
        or values.is_quantized or values.layout is not torch.strided or values.device.type != "cpu"
    ):  # fmt: skip
        raise InputError(f"{path}: is no matrix of positions x vocabulary.")
    if values.numel() * values.element_size() > values.untyped_storage().nbytes():
        raise InputError(f"{path}: claims more numbers than it holds; save a copy (clone) of the view.")
    return Logits(values)


def _chosen(path: Path, arrays: Any, name: str) -> Any:
    if isinstance(arrays, dict) and name in arrays:
        return arrays[name]
    if isinstance(arrays, dict) and len(arrays) == 1 and not name:
        return next(iter(arrays.values()))
    raise InputError(f"{path}: name one of its arrays, as {path.name}#NAME.")


def _matrix(values: Any, place: str, *, is_bfloat16: bool = False) -> Logits:
    if not isinstance(values, np.ndarray) or values.ndim != 2 or values.dtype.kind not in "fiu":
        raise InputError(f"{place}: is no matrix of positions x vocabulary.")
    return Logits(values, is_bfloat16=is_bfloat16)
