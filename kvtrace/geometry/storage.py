"""What one number of a cache takes, and one record of a token with its scales.

auto                        as the model's own dtype; or fp8 where the checkpoint's quantisation says so
bfloat16, float16, float32  plainly
fp8, fp8_e4m3, fp8_e5m2     a byte a number; the scales are one a layer, outside the cache
{fp8,int8}_per_token_head   a byte a number and, in the record, a float32 scale for the key and for the value
int4_per_token_head         two numbers a byte, and the same scales
fp8_ds_mla, nvfp4_ds_mla    vLLM's packed records of sparse MLA (656 and 352 bytes a token): of its geometry
                            alone (latent 512, rope 64), no payload of another model

Source: vLLM 0.32, v1/kv_cache_interface.py, v1/attention/backends/triton_attn.py (scales),
model_executor/layers/attention/mla_attention.py (packed records), utils/torch_utils.py (auto).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from kvtrace.geometry.configuration import Configuration

AUTO = "auto"
PLAIN = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
"""Bytes a number."""
_BYTE = ("fp8", "fp8_e4m3", "fp8_e5m2")
_SCALED = {"fp8_per_token_head": 1, "int8_per_token_head": 1, "int4_per_token_head": 2}
"""Numbers a byte."""
_SCALE_BYTES = 4
PACKED = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Bytes of a token's record, for a latent of 512 and a rope part of 64."""
PACKED_LATENT = (512, 64)
NAMES = (AUTO, *PLAIN, *_BYTE, *_SCALED, *PACKED)


@dataclass(frozen=True, slots=True)
class Storage:
    """How a cache stores what a layer keeps; `name` is never auto."""

    name: str
    state_name: str | None
    """The plain dtype of recurrent state: the model's own."""

    def record_bytes(self, key: int, value: int) -> int:
        """A token of one KV head: its key's and its value's numbers, scales included."""
        if self.name in PACKED:
            raise UsageError(
                f"--dtype {self.name}: is a packed record of latent attention; this model keeps keys, values."
            )
        if self.name in _SCALED:
            numbers = _SCALED[self.name]
            return key // numbers + value // numbers + 2 * _SCALE_BYTES
        return (key + value) * self._number_bytes()

    def latent_bytes(self, latent: int, rope: int, *, sparse: bool) -> int:
        """A token of latent attention: the compressed vector and the part with positions."""
        if self.name in PACKED:
            if (latent, rope) != PACKED_LATENT:
                raise UsageError(
                    f"--dtype {self.name}: packs a latent of 512 and a rope part of 64; this model's "
                    f"kv_lora_rank is {latent} and its qk_rope_head_dim {rope}."
                )
            return PACKED[self.name]
        if self.name in _SCALED:
            raise UsageError(f"--dtype {self.name}: no engine known here keeps a latent vector so.")
        if sparse and self.name in _BYTE:
            raise UsageError(
                f"--dtype {self.name}: what a record holds beside an indexer depends on the kernel; "
                "say fp8_ds_mla for vLLM's packed one."
            )
        return (latent + rope) * self._number_bytes()

    def state_number_bytes(self, config: Configuration, field: str = "dtype") -> int:
        """A number of recurrent state, in the model's dtype unless a field names another."""
        named = None if field == "dtype" else config.get(field)
        chosen, field = (self.state_name, "dtype") if named is None else (str(named), field)
        if chosen is None:
            config.refuse(field, "is missing (and so is torch_dtype); recurrent state has the model's own")
        if chosen not in PLAIN:
            config.refuse(field, f"is {chosen[:40]}, which is not known for recurrent state")
        return PLAIN[chosen]

    def _number_bytes(self) -> int:
        return 1 if self.name in _BYTE else PLAIN[self.name]


_HINT = " (and so is torch_dtype); name the cache's with --dtype"


def storage_of(config: Configuration, dtype: str) -> Storage:
    """The storage of a model's cache, `auto` resolved.

    Raises:
        UsageError: no such dtype.
        InputError: auto, and the configuration does not say it in a way known here.
    """
    if dtype not in NAMES:
        raise UsageError(f"--dtype {dtype}: is not known; there are {', '.join(NAMES)}.")
    said = config.anywhere("dtype") or config.anywhere("torch_dtype")
    own = str(said).removeprefix("torch.") if said is not None else None
    if dtype != AUTO:
        return Storage(dtype, own or (dtype if dtype in PLAIN else None))
    chosen = _quantised(config) or own
    if chosen is None:
        config.refuse("dtype", f"is missing{_HINT}")
    if chosen not in NAMES:
        config.refuse("dtype", f"is {chosen[:40]}, which is not known here; name the cache's with --dtype")
    return Storage(chosen, own)


def _quantised(config: Configuration) -> str | None:
    """What the checkpoint's quantisation says of its cache: fp8, or nothing."""
    for name in ("quantization_config", "compression_config"):
        scheme = config.anywhere(name)
        if not isinstance(scheme, dict):
            continue
        for field, value in _cache_schemes(scheme):
            if value is None:
                continue
            bits, kind = (
                (value.get("num_bits"), value.get("type")) if isinstance(value, dict) else (None, None)
            )
            if (bits, kind) == (8, "float") or (isinstance(value, str) and value.lower() == "fp8"):
                return "fp8"
            config.refuse(
                f"{name}.{field}", "stores the cache in a way not known here; name the cache's with --dtype"
            )
    return None


def _cache_schemes(scheme: dict[str, Any]) -> list[tuple[str, Any]]:
    """Where quantisers say it: compressed-tensors, and ModelOpt in its two forms."""
    inner = scheme.get("quantization")
    found = [(name, scheme.get(name)) for name in ("kv_cache_scheme", "kv_cache_quant_algo")]
    if isinstance(inner, dict):
        found.append(("quantization.kv_cache_quant_algo", inner.get("kv_cache_quant_algo")))
    return found
