"""What we rely on in engines that cannot run here is what their wheels' source says."""

from __future__ import annotations

import pytest
from kvtrace.instrument import kvbm
from kvtrace.instrument.sglang import caches, copies, storage
from kvtrace.instrument.sglang.places import FIELDS, PLACES
from tests.engines.environment import skip_when_missing
from tests.engines.wheels import classes, fields, parameters, wheel

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("version", list(PLACES))
def test_hicache_has_every_place_with_the_parameters_that_we_read(version: str) -> None:
    skip_when_missing("sglang")
    path = wheel("sglang", version)
    found = {
        (module, cls, method): parameters(classes(path, module)[cls], method)
        for module, places in PLACES[version].items()
        for cls, methods in places.items()
        for method in methods
    }
    for (module, cls, method), names in found.items():
        expected = PLACES[version][module][cls][method]
        assert names is not None, f"{module}.{cls}.{method} is not in {version}"
        assert tuple(names[: len(expected)]) == expected, f"{module}.{cls}.{method}"


@pytest.mark.parametrize("version", list(FIELDS))
def test_hicaches_objects_have_what_we_read_of_them(version: str) -> None:
    skip_when_missing("sglang")
    path = wheel("sglang", version)
    for module, expected in FIELDS[version].items():
        found = classes(path, module)
        for cls, names in expected.items():
            assert set(names) <= fields(found[cls]), f"{module}.{cls} of {version}"


def test_the_two_versions_of_hicache_differ_where_we_say_so() -> None:
    skip_when_missing("sglang")
    old, new = wheel("sglang", "0.5.18"), wheel("sglang", "0.5.23")
    assert "HiRadixCache" in classes(old, "sglang.srt.mem_cache.hiradix_cache")
    assert classes(new, "sglang.srt.mem_cache.hiradix_cache") == {}
    unified = "sglang.srt.mem_cache.unified_radix_cache"
    method = "check_prefetch_progress"
    assert parameters(classes(old, unified)["UnifiedRadixCache"], method) == ["req_id"]
    assert parameters(classes(new, unified)["UnifiedRadixCache"], method) == ["request"]


def test_every_place_has_a_hook() -> None:
    hooks = {**caches.HOOKS, **copies.HOOKS, **storage.HOOKS}
    methods = {
        name for places in PLACES.values() for one in places.values() for cls in one.values() for name in cls
    }
    assert methods == set(hooks)


@pytest.mark.parametrize("version", kvbm.VERSIONS)
def test_kvbms_connector_has_the_methods_of_a_connector_and_no_way_to_report_failed_loads(
    version: str,
) -> None:
    skip_when_missing("kvbm")
    connector = classes(wheel("kvbm", version), kvbm.MODULE)[kvbm.CONNECTOR]
    for method, expected in kvbm.METHODS.items():
        names = parameters(connector, method)
        assert names is not None, f"{method} is not in {version}"
        assert tuple(names) == expected, method
    assert [method for method in kvbm.ABSENT if parameters(connector, method) is not None] == []
