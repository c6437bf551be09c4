from __future__ import annotations

import os
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
from kvtrace.errors import UsageError
from kvtrace.launch import bootstrap
from kvtrace.launch.environment import reaching
from tests.unit.launch.launched import environment

# The interpreter below our virtual environment: it knows nothing of kvtrace.
BARE = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
ENTRY_POINTS = (
    "from importlib.metadata import entry_points; "
    "print([(e.name, e.value) for e in entry_points(group='vllm.general_plugins')])"
)
OURS = "[('kvtrace', 'kvtrace.instrument.vllm:register')]\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return bootstrap.make()


def python(
    folder: Path, *words: str, paths: tuple[Path, ...] = (), program: str = BARE, **more: str
) -> subprocess.CompletedProcess[str]:
    bare = environment(**more)
    bare.pop("PYTHONPATH")
    if paths:
        bare["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    return subprocess.run(
        [program, *words],
        env=reaching(bare, folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )


def site(folder: Path, code: str) -> Path:
    """Another folder on PYTHONPATH with a sitecustomize of its own."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return folder


def test_a_python_that_knows_nothing_of_us_finds_the_package_and_its_plugin(folder: Path) -> None:
    assert python(folder, "-c", ENTRY_POINTS).stdout == OURS
    assert (
        python(folder, "-c", "import kvtrace.recorder; print(kvtrace.__file__)").stdout
        == f"{folder}/kvtrace/__init__.py\n"
    )


def test_a_process_that_such_a_python_starts_finds_them_too(folder: Path) -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ENTRY_POINTS!r}])"
    assert python(folder, "-c", code).stdout == OURS


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_of_multiprocessing_find_them_too(method: str, folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing as m\n"
        "def work():\n"
        f"    {ENTRY_POINTS}\n"
        "if __name__ == '__main__':\n"
        f"    child = m.get_context('{method}').Process(target=work); child.start(); child.join()\n"
    )
    assert python(folder, str(script)).stdout == OURS


def test_the_plugin_is_found_once_where_kvtrace_is_installed_as_well(folder: Path, tmp_path: Path) -> None:
    installed = tmp_path / "site" / "kvtrace-9.9.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: kvtrace\nVersion: 9.9\n")
    (installed / "entry_points.txt").write_text(bootstrap.ENTRY_POINTS)
    assert python(folder, "-c", ENTRY_POINTS, paths=(installed.parent,)).stdout == OURS


def test_what_declares_the_plugin_of_an_install_declares_the_same(folder: Path) -> None:
    import tomllib

    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"][
        "entry-points"
    ]
    assert declared.pop("vllm.general_plugins") == {"kvtrace": "kvtrace.instrument.vllm:register"}
    ours = declared.pop("opentelemetry_instrumentor")  # loaded by opentelemetry-instrument alone
    assert list(ours) == ["kvtrace", "kvtrace_lmcache"]
    assert declared == {}
    text = (next(folder.glob("*.dist-info")) / "entry_points.txt").read_text()
    assert text == bootstrap.ENTRY_POINTS
    linked = ConfigParser()
    linked.read_string(text)
    assert dict(linked["opentelemetry_instrumentor"]) == ours
    assert set(linked.sections()) == {"vllm.general_plugins", "opentelemetry_instrumentor"}


def test_another_sitecustomize_runs_as_if_ours_were_not_there(folder: Path, tmp_path: Path) -> None:
    other = site(tmp_path / "other", "MARK = 'theirs'\nimport sys\nsys.path.append('/theirs')")
    code = "import sitecustomize as s, sys; print(s.MARK, s.__file__, sys.path[1:3], '/theirs' in sys.path)"
    said = python(folder, "-c", code, paths=(other,)).stdout
    assert said == f"theirs {other}/sitecustomize.py ['{folder}', '{other}'] True\n"


def test_two_of_ours_reach_both_folders_and_whoever_is_below(folder: Path, tmp_path: Path) -> None:
    inner, other = bootstrap.make(), site(tmp_path / "other", "MARK = 'theirs'")
    said = python(inner, "-c", "import sitecustomize as s; print(s.MARK)", paths=(folder, other)).stdout
    assert said == "theirs\n"
    assert len(bootstrap.reached(inner)) == len(bootstrap.reached(folder)) == 1


@pytest.mark.parametrize(
    "code", ["1 / 0", "import no_such_module", "raise SystemExit(5)", "raise KeyboardInterrupt"]
)
def test_what_another_sitecustomize_raises_is_what_it_raises_without_us(
    code: str, folder: Path, tmp_path: Path
) -> None:
    other = site(tmp_path / "other", code)
    bare = environment(PYTHONPATH=str(other))
    without = subprocess.run([BARE, "-c", "print(1)"], env=bare, capture_output=True, text=True, check=False)
    within = python(folder, "-c", "print(1)", paths=(other,))
    assert (within.returncode, within.stdout) == (without.returncode, without.stdout)
    assert within.stderr.splitlines()[-1:] == without.stderr.splitlines()[-1:]


def test_who_was_there_is_known(folder: Path) -> None:
    assert bootstrap.reached(folder) == []
    python(folder, "-c", "pass")
    python(folder, "-c", "pass")
    ((version, executable),) = bootstrap.reached(folder)
    assert version == ".".join(map(str, sys.version_info[:3]))
    assert Path(executable).exists()


@pytest.mark.parametrize("flag", ["-E", "-I", "-S"])
def test_flags_that_shut_us_out_shut_us_out(flag: str, folder: Path) -> None:
    assert python(folder, flag, "-c", "print(1)").stdout == "1\n"
    assert bootstrap.reached(folder) == []


def test_an_interpreter_starts_whatever_became_of_our_folder(folder: Path) -> None:
    (folder / "reached").unlink()
    silent = python(folder, "-c", "print(1)")
    assert (silent.stdout, silent.stderr) == ("1\n", "")
    bootstrap.remove(folder)
    silent = python(folder, "-c", "print(1)")
    assert (silent.stdout, silent.stderr) == ("1\n", "")


def test_removing_the_folder_leaves_the_package_alone(folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    bootstrap.remove(folder)
    assert not folder.exists()
    assert Path(bootstrap.__file__).exists()


def test_a_temporary_folder_that_pythonpath_cannot_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "a:b"))
    with pytest.raises(UsageError, match="set another TMPDIR"):
        bootstrap.make()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    with pytest.raises(UsageError, match="set TMPDIR"):
        bootstrap.make()


@pytest.mark.parametrize(
    ("inherited", "plugins", "paths"),
    [
        ({}, None, "/x"),
        ({"PYTHONPATH": ""}, None, "/x"),
        ({"PYTHONPATH": "/a:/b"}, None, "/x:/a:/b"),
        ({"VLLM_PLUGINS": ""}, "kvtrace", "/x"),
        ({"VLLM_PLUGINS": "a,b"}, "a,b,kvtrace", "/x"),
        ({"VLLM_PLUGINS": "kvtrace"}, "kvtrace", "/x"),
    ],
)
def test_the_list_of_allowed_plugins_grows_only_where_there_is_one(
    inherited: dict[str, str], plugins: str | None, paths: str
) -> None:
    made = reaching(inherited, Path("/x"))
    assert (made.get("VLLM_PLUGINS"), made["PYTHONPATH"]) == (plugins, paths)


def other_python(minor: int) -> str | None:
    """Another version of Python: on PATH, or beside the one below our virtual environment."""
    name = f"python3.{minor}"
    beside = sorted(Path(sys.base_prefix).parent.glob(f"3.{minor}*/bin/{name}"))
    for candidate in [*map(str, beside), shutil.which(name)]:
        if (
            candidate
            and not subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode
        ):
            return candidate
    return None


@pytest.mark.parametrize("minor", [10, 12, 13])
def test_other_versions_of_python_are_reached_too(minor: int, folder: Path) -> None:
    other = other_python(minor)
    if other is None:
        pytest.skip(f"no python3.{minor} on this machine")
    code = "import kvtrace.recorder, kvtrace.instrument.vllm; " + ENTRY_POINTS
    done = python(folder, "-c", code, program=other)
    assert (done.stdout, done.stderr) == (OURS, "")


DEVICES = (
    "from importlib.metadata import entry_points; "
    "print([(e.name, e.value) for e in entry_points(group='lmcache.device_plugins')])"
)


def test_lmcaches_device_plugin_is_declared_only_where_it_is_asked_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    attached = bootstrap.make(attach_lmcache=True)
    assert python(folder, "-c", DEVICES).stdout == "[]\n"
    said = python(attached, "-c", DEVICES).stdout
    assert said == "[('kvtrace', 'kvtrace.instrument.lmcache.device_plugin:KvtraceSpec')]\n"
    assert python(attached, "-c", ENTRY_POINTS).stdout == OURS


def cache(folder: Path) -> Path:
    """A package called lmcache, with what our device plugin makes its class of."""
    package = folder / "lmcache" / "v1" / "platform" / "base"
    package.mkdir(parents=True)
    (folder / "lmcache" / "__init__.py").write_text("__version__ = '0.5.5'\n")
    (package / "device_spec.py").write_text("class DeviceSpec:\n    pass\n")
    return folder


ARMED = "from kvtrace.instrument import importing; print('event bus of LMCache' in importing.status())"


def test_the_first_import_of_lmcache_arms_a_process(folder: Path, tmp_path: Path) -> None:
    places, out = (cache(tmp_path / "packages"),), str(tmp_path)
    said = python(folder, "-c", f"import lmcache; {ARMED}", paths=places, KVTRACE_OUT=out)
    assert (said.stdout, said.stderr) == ("True\n", "")
    assert python(folder, "-c", ARMED, paths=places, KVTRACE_OUT=out).stdout == "False\n"
    assert python(folder, "-c", f"import lmcache; {ARMED}", paths=places).stdout == "False\n"


def test_lmcache_is_imported_whatever_is_wrong_with_us(folder: Path, tmp_path: Path) -> None:
    (folder / "kvtrace").unlink()
    broken = folder / "kvtrace" / "instrument" / "lmcache"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise OSError('broken')\n")
    said = python(
        folder, "-c", "import lmcache, json; print(lmcache.__version__)",
        paths=(cache(tmp_path / "packages"),), KVTRACE_OUT=str(tmp_path),
    )  # fmt: skip
    assert (said.stdout, said.stderr) == ("0.5.5\n", "")


def test_our_device_is_named_as_its_entry_point_and_never_there(folder: Path, tmp_path: Path) -> None:
    code = (
        "from kvtrace.instrument.lmcache.device_plugin import KvtraceSpec as K\n"
        "from lmcache.v1.platform.base.device_spec import DeviceSpec\n"
        "print(issubclass(K, DeviceSpec), K().backend_name, K().device_type, K().is_available())\n" + ARMED
    )
    said = python(folder, "-c", code, paths=(cache(tmp_path / "packages"),), KVTRACE_OUT=str(tmp_path))
    assert (said.stdout, said.stderr) == ("True kvtrace kvtrace False\nTrue\n", "")
