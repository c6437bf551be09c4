"""Runs inside the engine's Python: the same logits by numpy and by torch, from every form of file.

Prints {form: {backend: [numbers]}} as JSON; torch, safetensors and numpy write the files themselves. Then
what is said of `.pt` files that hold no matrix, and whether the code planted in one was run.
"""

from __future__ import annotations

import json
import sys
from dataclasses import astuple
from pathlib import Path

import numpy as np
import torch
from kvtrace.analyses._logits import matrix_of, of_logits, torch_or_none
from kvtrace.errors import InputError
from safetensors.torch import save_file

POSITIONS, VOCABULARY = 40, 70_000


def main(folder: Path) -> dict[str, dict[str, list[object]]]:
    """Two matrices, one a little off the other; a row with NaN, one with +inf, one that rules tokens out."""
    generator = torch.Generator().manual_seed(7)
    full = torch.randn(POSITIONS, VOCABULARY, generator=generator) * 4
    blended = full + torch.randn(POSITIONS, VOCABULARY, generator=generator) * 0.1
    blended[3, 5], full[4, 6] = float("nan"), float("inf")
    for each in (full, blended):
        each[7, :100] = float("-inf")
    blended[8, 100] = float("-inf")
    halves = {name: each.bfloat16() for name, each in (("full", full), ("blended", blended))}
    np.save(folder / "full.npy", full.numpy())
    np.save(folder / "blended.npy", blended.numpy())
    torch.save({"full": full, "blended": blended}, folder / "both.pt")
    torch.save(halves, folder / "halves.pt")
    save_file({"full": full, "blended": blended}, folder / "both.safetensors")
    save_file(halves, folder / "halves.safetensors")
    forms = {"npy": ("full.npy", "blended.npy")}
    forms |= {
        name: (f"{name}#full", f"{name}#blended")
        for name in ("both.pt", "both.safetensors", "halves.pt", "halves.safetensors")
    }
    return {form: _by_both(folder, *names) for form, names in forms.items()}


def _by_both(folder: Path, *names: str) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for backend, library in (("numpy", None), ("torch", torch_or_none())):
        full, blended = (matrix_of(name, folder, "r") for name in names)
        found[backend] = list(astuple(of_logits(full, blended, "r", library)))
    return found


class Planted:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def refused(folder: Path) -> dict[str, str]:
    """Form -> the sentence that refuses it; `ran`: whether planted code was."""
    planted = folder / "planted"
    forms: dict[str, object] = {
        "expanded": torch.zeros(1).expand(1, 2**42),
        "sparse": torch.zeros(2, 3).to_sparse(),
        "compressed": torch.zeros(2, 3).to_sparse_csr(),
        "meta": torch.zeros(2, 3, device="meta"),
        "quantized": torch.quantize_per_tensor(torch.zeros(2, 3), 0.1, 0, torch.qint8),
        "planted": Planted(planted),
    }
    said = {}
    for form, content in forms.items():
        path = folder / f"{form}.pt"
        torch.save(content, path)
        try:
            matrix_of(path.name, folder, "r")
        except InputError as error:
            said[form] = str(error).removeprefix(f"{path}: ")
    return {**said, "ran": str(planted.exists())}


if __name__ == "__main__":
    print("ANSWERS", json.dumps(main(Path(sys.argv[1]))))
    print("REFUSED", json.dumps(refused(Path(sys.argv[1]))))
