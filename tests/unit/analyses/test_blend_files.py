"""Pairs, logits and thresholds that cannot be read: one sentence each, with its place."""

from __future__ import annotations

import json
import math
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kvtrace.analyses.blend import blend
from kvtrace.analyses.blend.pairs import read_pairs
from kvtrace.errors import InputError, UsageError
from tests.unit.analyses.blend_rows import TOKENS, asked, asked_all, drawn, of_logits

Row = dict[str, Any]

GOOD = json.dumps({"request_id": "r0", **TOKENS})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1: is no JSON"),
        ("[" * 100_000, "line 1: is no JSON"),
        ("\x00\xff", "line 1: is no JSON"),
        ("3", "line 1: is no pair"),
        (json.dumps(TOKENS), "line 1: is no pair .*request_id"),
        (json.dumps({"request_id": None, **TOKENS}), "line 1: is no pair"),
        (json.dumps({"request_id": "", **TOKENS}), "line 1: is no pair"),
        (json.dumps({"request_id": "\ud800", **TOKENS}), "line 1: is no pair"),
        (json.dumps({"request_id": "r0"}), "has neither token ids nor logits"),
        (json.dumps({"request_id": "r0", "full_tokens": [1]}), "has tokens of one side only"),
        (json.dumps({"request_id": "r0", **TOKENS, "full_logits": [[1.0]]}), "has logits of one side only"),
        (json.dumps({"request_id": "r0", "full_tokens": [1.5], "blended_tokens": [1]}), "is no pair"),
        (json.dumps({"request_id": "r0", "full_tokens": [True], "blended_tokens": [1]}), "is no pair"),
        (json.dumps({"request_id": "r0", "full_tokens": [-1], "blended_tokens": [1]}), "is no pair"),
        (json.dumps({"request_id": "r0", "full_tokens": [2**70], "blended_tokens": [1]}), "is no pair"),
        (json.dumps(of_logits([[0.0, 1.0], [0.0]], [[0.0, 1.0]])), "rows of several lengths"),
        (json.dumps(of_logits([[0.0, 1.0]], [[0.0, 1.0, 2.0]])), "vocabularies of 2 and 3"),
        (json.dumps({"request_id": "r0", **TOKENS, "recompute_ratio": 1.5}), "is no pair"),
        (json.dumps({"request_id": "r0", **TOKENS, "full_quality": math.nan}), "no finite number"),
        (f"{GOOD}\n{GOOD}", "line 2: a second pair"),
    ],
)
def test_a_malformed_pair_is_refused_with_its_place(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(line.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError, match=said):
        blend(drawn(tmp_path), pairs=path, through="numpy")


def test_two_names_of_one_request_are_refused(tmp_path: Path) -> None:
    run = drawn(tmp_path, alias=[{"alias": "mine", "kind": "client", "request_id": "r0"}])
    with pytest.raises(InputError, match="two pairs name one request"):
        asked_all(tmp_path, run, {"request_id": "mine", **TOKENS}, {"request_id": "r0", **TOKENS})


def test_a_line_without_an_end_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtrace.analyses.blend.pairs.MOST_LINE_BYTES", 1 << 20)
    path = tmp_path / "pairs.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # sparse: a gigabyte that takes no room
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"line 1: longer than 1 MiB; name a file"):
            list(read_pairs(path))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_parquet_file_of_few_bytes_and_many_numbers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtrace.analyses.blend.pairs.MOST_VALUES", 1000)
    table = pa.table({"request_id": ["r0"], "full_tokens": [[7] * 600], "blended_tokens": [[7] * 600]})
    pq.write_table(table, tmp_path / "pairs.parquet")
    with pytest.raises(
        InputError, match=r"a row group has 1,201 values; write smaller ones, of at most 1,000"
    ):
        blend(drawn(tmp_path), pairs=tmp_path / "pairs.parquet", through="numpy")


def test_columns_of_a_parquet_file_that_nobody_reads_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtrace.analyses.blend.pairs.MOST_VALUES", 1000)
    table = pa.table({"request_id": ["r0"], "full_tokens": [[7]], "blended_tokens": [[7]], "x": [[1] * 5000]})
    pq.write_table(table, tmp_path / "pairs.parquet")
    assert blend(drawn(tmp_path), pairs=tmp_path / "pairs.parquet", through="numpy").height == 1


def test_the_largest_row_group_that_is_read_takes_bounded_memory(tmp_path: Path) -> None:
    """Sixteen rows of 2^17 token ids a side, in a few kilobytes: one row's are objects at a time."""
    ids = pa.array([[7] * (1 << 17)] * 16)
    table = pa.table(
        {"request_id": [str(row) for row in range(16)], "full_tokens": ids, "blended_tokens": ids}
    )
    pq.write_table(table.slice(0, 15), tmp_path / "pairs.parquet")
    assert (tmp_path / "pairs.parquet").stat().st_size < 100_000
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_pairs(tmp_path / "pairs.parquet")) == 15
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_broken_parquet_file_or_none_is_refused(tmp_path: Path) -> None:
    run = drawn(tmp_path)
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        blend(run, pairs=tmp_path / "cut.parquet")
    with pytest.raises(InputError, match="cannot be read"):
        blend(run, pairs=tmp_path / "none")
    with pytest.raises(InputError, match="cannot be read"):
        blend(run, pairs=tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("l.npy", b"\x93NUMPY", "is no array that numpy wrote"),
        ("l.npy", None, "no such file"),
        ("l.bin", b"", "logits are .npy, .safetensors or .pt files"),
        ("l.safetensors", b"", "is cut off"),
        ("l.safetensors", (10**12).to_bytes(8, "little"), "is cut off"),
        ("l.safetensors", (2).to_bytes(8, "little") + b"[]", "has no header|name one of"),
        (
            "l.safetensors",
            (66).to_bytes(8, "little")
            + b'{"a":{"dtype":"F32","shape":[9,99999],"data_offsets":[0,16]}}     ',
            "do not agree",
        ),
    ],
)
def test_logits_that_cannot_be_read_are_refused(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        asked(tmp_path, {"request_id": "r0", "full_logits": name, "blended_logits": name})


def npy(header: str) -> bytes:
    text = header.encode()
    text += b" " * (64 - (len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 64


def safetensors(shape: list[int], stop: int) -> bytes:
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, stop]}
    text = json.dumps({"a": entry}).encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * stop


ORDER = "'descr':'<f8','fortran_order':False,'shape':"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("l.npy", npy("{'descr':'''abc")),
        ("l.npy", npy(f"{{{ORDER}({'-' * 8000}1,2)}}")),
        ("l.npy", npy(f"{{{ORDER}(True,2)}}")),
        ("l.npy", npy(f"{{{ORDER}(-1,2)}}")),
        ("l.npy", npy(f"{{{ORDER}({10**30},0)}}")),
        ("l.safetensors", safetensors([0, 10**30], 0)),
        ("l.safetensors", safetensors([0, 2**62], 0)),
        ("l.safetensors", safetensors([1] * 70, 4)),
        ("a" * 5000 + ".npy", None),
        ("a\0.npy", None),
    ],
    ids=range(10),
)
def test_hostile_logits_are_refused_in_one_sentence(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=r"is no |no such file"):
        asked(tmp_path, {"request_id": "r0", "full_logits": name, "blended_logits": name})


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "l.safetensors").symlink_to("/proc/self/mem")
    with pytest.raises(InputError, match=r"cannot be read|is cut off"):
        asked(
            tmp_path, {"request_id": "r0", "full_logits": "l.safetensors", "blended_logits": "l.safetensors"}
        )


class Planted:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("form", ["npy of objects", "pickle"])
def test_nothing_is_ever_unpickled(tmp_path: Path, form: str) -> None:
    planted = tmp_path / "planted"
    if form == "pickle":
        (tmp_path / "l.npy").write_bytes(pickle.dumps(Planted(planted)))
    else:
        np.save(tmp_path / "l.npy", np.array([[Planted(planted)]], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="without objects"):
        asked(tmp_path, {"request_id": "r0", "full_logits": "l.npy", "blended_logits": "l.npy"})
    assert not planted.exists()


def test_an_archive_of_arrays_is_no_matrix(tmp_path: Path) -> None:
    with (tmp_path / "l.npy").open("wb") as file:
        np.savez(file, a=np.zeros((2, 2)))
    with pytest.raises(InputError, match="is no matrix of positions x vocabulary"):
        asked(tmp_path, {"request_id": "r0", "full_logits": "l.npy", "blended_logits": "l.npy"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "is no TOML"),
        ("", "names no limit"),
        ("rejected = 1", "names no limit"),
        ("most = 3", "knows no limit"),
        ("[most]\nperplexity = 1", "knows no limit 'perplexity'"),
        ("[most]\nkl_mean = nan", "no finite number"),
        ("[most]\nkl_mean = true", "no finite number"),
        ("[most]\nkl_mean = 1" + "0" * 400, "no finite number"),
        ("[most]\nkl_mean = 1\n[other]", "thresholds are"),
        ("requests = -1\n[most]\nkl_mean = 1", "requests is no count"),
    ],
)
def test_thresholds_that_say_nothing_sensible_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        asked(tmp_path, {"request_id": "r0", **TOKENS}, limits=text)


def test_thresholds_without_pairs_are_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "limits.toml").write_text("[most]\nkl_mean = 1")
    with pytest.raises(UsageError, match="give --pairs as well"):
        blend(drawn(tmp_path), thresholds=tmp_path / "limits.toml")


def test_a_pt_file_without_torch_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrace.analyses._logits.matrices.torch_or_none", lambda: None)
    (tmp_path / "l.pt").write_bytes(b"")
    with pytest.raises(UsageError, match=r"needs torch, which is not installed; pip install"):
        asked(tmp_path, {"request_id": "r0", "full_logits": "l.pt", "blended_logits": "l.pt"})


def test_torch_that_is_asked_for_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blend.__globals__, "torch_or_none", lambda: None)
    with pytest.raises(UsageError, match="torch is not installed"):
        asked(tmp_path, {"request_id": "r0", **TOKENS}, through="torch")
