"""`tenure.enable`: its table, libraries that are not installed, are imported later or fail. The libraries' own hooks are tested in
`test_allocators_<library>.py`."""

from __future__ import annotations

import os
import sys

import pytest
import tenure
from conftest import SOURCE_PACKAGE
from plugs import run
from tenure.allocators import Row, Table, _libraries

mr = tenure.mr


# ------------------------------------------------------------------ without any library


def test_importing_the_hooks_imports_no_library():
    run(
        """
        import sys, tenure
        import tenure.allocators.cupy, tenure.allocators.numba, tenure.allocators.torch
        import tenure.allocators.warp, tenure.allocators.cuda_core, tenure.allocators.rmm
        for name in ("cupy", "numba", "torch", "warp", "cuda.core", "rmm", "numpy"):
            assert name not in sys.modules, name
        """
    )


@pytest.mark.parametrize("name", ["cuda_core", "cupy", "numba", "rmm", "torch", "warp"])
def test_hooks_are_found_without_an_import_of_their_own(name):
    run(
        f"""
        import tenure
        assert tenure.allocators.{name}.__name__ == "tenure.allocators.{name}"
        assert "{name}" in dir(tenure.allocators)
        """
    )


LACKED = {
    "cupy": "cupy-cuda13x",
    "torch": "torch",
    "numba": "numba-cuda",
    "warp": "warp-lang",
    "cuda.core": "cuda-core",
    "rmm": "rmm-cu13",
}


@pytest.mark.parametrize("library", LACKED)
def test_a_library_that_is_not_installed_is_named_with_its_package(library):
    """Whatever is installed here: the finder that would find it is told not to."""
    told = run(
        f"""
        import sys, importlib.util
        from importlib.abc import MetaPathFinder
        class Hide(MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name.partition(".")[0] in ("cupy", "torch", "numba", "numba_cuda", "warp", "cuda", "numba_cuda_mlir", "rmm"):
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        import tenure
        sys.meta_path.insert(0, Hide())
        try:
            tenure.enable({library!r})
        except ModuleNotFoundError as error:
            print(error)
        rows = tenure.enable()
        assert all(row.state == "not installed" for row in rows), rows
        """
    )
    assert LACKED[library] in told


def test_waiting_imports_no_library():
    run(
        """
        import sys, tenure
        rows = tenure.enable()
        assert all(row.state in ("waiting", "not installed") for row in rows), rows
        for name in ("cupy", "numba", "torch", "warp", "cuda.core", "numba_cuda_mlir"):
            assert name not in sys.modules, name
        assert len(tenure.disable()) == sum(row.state == "waiting" for row in rows)
        """
    )


def test_names_that_are_no_library_are_refused():
    with pytest.raises(ValueError, match=r"no plug for 'numpy'.*cupy"):
        tenure.enable("numpy")
    with pytest.raises(TypeError, match="a name or a module"):
        tenure.enable(3)
    with pytest.raises(TypeError, match=r"resource of tenure\.mr"):
        tenure.enable("cupy", mr=object())
    with pytest.raises(ValueError, match="route"):
        tenure.enable("cupy", route="sideways")


@pytest.mark.parametrize(("name", "instead"), [("jax", "jax.md"), ("tensorflow", "tensorflow.md"), ("cudf", 'enable("rmm")')])
def test_what_has_no_hook_says_where_its_memory_comes_from(name, instead):
    with pytest.raises(ValueError, match="no plug for") as caught:
        tenure.enable(name)
    assert instead in str(caught.value)


@pytest.mark.needs_sim
def test_the_simulated_device_is_refused_unless_it_was_asked_for():
    environment = {key: value for key, value in os.environ.items() if key != "TENURE_DEVICE"}
    code = "import tenure\ntry:\n    tenure.enable('cupy')\nexcept RuntimeError as e:\n    print(e)"
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert "TENURE_DEVICE=sim" in done.stdout, done


HOOKS = {
    "cupy": "tenure.allocators.cupy.tenure_cupy_allocator(100)",
    "cupy, pinned": "tenure.allocators.cupy.tenure_cupy_pinned_allocator(100)",
    "numba": "tenure.allocators.numba.TenureNumbaManager",
    "numba, of the environment": "tenure.allocators.numba._numba_memory_manager()",
    "torch": "tenure.allocators.torch.tenure_torch_allocator",
    "torch, a pool": "tenure.allocators.torch.mem_pool()",
    "warp": "tenure.allocators.warp.allocator().allocate(100)",
    "cuda.core": "tenure.allocators.cuda_core.memory_resource(0)",
    "rmm": "tenure.allocators.rmm.to_rmm()",
}


@pytest.mark.needs_sim
@pytest.mark.parametrize("hook", HOOKS)
def test_each_hook_by_itself_refuses_the_simulated_device_too(hook, stand_ins):
    """Whatever is installed: it is refused before the library is looked for."""
    told = run(
        f"""
        import os
        del os.environ["TENURE_DEVICE"]
        import tenure
        try:
            {HOOKS[hook]}
        except RuntimeError as error:
            print(error)
        """,
        PYTHONPATH=stand_ins,
        quiet=False,
    )
    assert "here would get memory of the simulated device" in told and "TENURE_DEVICE=sim" in told


def test_a_table_reads_like_one():
    table = Table([Row("cupy", "14.2.0", "on", "set_allocator", "current", ("a note",)), Row("warp", "", "off", "", "")])
    assert table["cupy"] is table[0] and len(table) == 2 and [row.library for row in table] == ["cupy", "warp"]
    lines = str(table).splitlines()
    assert lines[0].split() == ["library", "version", "state", "route", "resource"]
    assert lines[1].startswith("cupy") and lines[2].strip() == "a note" and lines[3].startswith("warp")
    with pytest.raises(KeyError):
        table["torch"]


def test_versions_are_told_apart():
    cupy = _libraries.LIBRARIES["cupy"]
    assert _libraries.is_tested(cupy, "14.2.9") and not _libraries.is_tested(cupy, "14.20.0")
    assert _libraries.named("pytorch").name == "torch" and _libraries.named("numba.cuda").name == "numba"


# A package that stands in for CuPy: only for the import hook and what `enable` does with it.
STAND_IN = """
__version__ = "99.0"
class cuda:
    _now = staticmethod(lambda size: "its own")
    @staticmethod
    def set_allocator(f): cuda._now = f
    @staticmethod
    def get_allocator(): return cuda._now
"""


@pytest.fixture
def stand_in(tmp_path):
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text(STAND_IN)
    # The package of the source tree, where it is tested, and the one that stands in.
    own = [str(SOURCE_PACKAGE)] if SOURCE_PACKAGE.is_dir() and "TENURE_TEST_INSTALLED" not in os.environ else []
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join([str(tmp_path), *own, *inherited])


def test_a_library_that_is_imported_later_is_turned_on_then(stand_in):
    run(
        """
        import sys, tenure
        table = tenure.enable("cupy")
        assert table["cupy"].state == "waiting" and "cupy" not in sys.modules
        import cupy
        assert cupy.cuda.get_allocator() is tenure.allocators.cupy.tenure_cupy_allocator
        # The module is as an ordinary import leaves it.
        assert type(cupy.__loader__).__name__ == "SourceFileLoader" and cupy.__spec__.loader is cupy.__loader__
        row = tenure.enable("cupy")["cupy"]
        assert row.state == "on" and row.version == "99.0" and "was not tested" in row.notes[-1]
        assert tenure.disable("cupy")["cupy"].state == "off"
        assert cupy.cuda.get_allocator()(1) == "its own"
        assert not any(type(f).__name__ == "_Watch" for f in sys.meta_path)
        """,
        PYTHONPATH=stand_in,
    )


def test_the_module_itself_and_import_before_are_the_same(stand_in):
    run(
        """
        import cupy, tenure
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        row = tenure.enable(cupy, mr=pool)["cupy"]
        assert (row.state, row.resource) == ("on", "PoolMemoryResource")
        first = cupy.cuda.get_allocator()
        tenure.enable(cupy, mr=pool)
        assert cupy.cuda.get_allocator() is first, "it was built twice"
        tenure.enable(cupy)
        assert cupy.cuda.get_allocator() is tenure.allocators.cupy.tenure_cupy_allocator
        # Somebody else's allocator is left alone.
        theirs = lambda size: "theirs"
        cupy.cuda.set_allocator(theirs)
        row = tenure.disable("cupy")["cupy"]
        assert cupy.cuda.get_allocator() is theirs and "left as it is" in row.notes[0]
        """,
        PYTHONPATH=stand_in,
    )


def test_an_import_that_is_no_longer_waited_for(stand_in):
    run(
        """
        import tenure
        tenure.enable("cupy")
        row = tenure.disable("cupy")["cupy"]
        assert row.state == "off" and "not waited for" in row.notes[0]
        import cupy
        assert cupy.cuda.get_allocator()(1) == "its own"
        assert len(tenure.disable()) == 0
        """,
        PYTHONPATH=stand_in,
    )


def test_a_library_that_fails_after_its_import(stand_in):
    """Named: the import fails with the reason. Not named: a warning, and the library works on."""
    broken = """
        import sys, warnings, tenure, tenure.allocators.cupy as plug
        def fail(mr, route): raise RuntimeError("no such hook")
        plug._PLUGS["cupy"].turn_on = fail
    """
    run(
        broken
        + """
        tenure.enable("cupy")
        try:
            import cupy
        except RuntimeError as error:
            assert "no such hook" in str(error)
        else:
            raise AssertionError("the import went through")
        """,
        PYTHONPATH=stand_in,
    )
    run(
        broken
        + """
        tenure.enable()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            import cupy
        assert "no such hook" in str(seen[0].message) and cupy.cuda.get_allocator()(1) == "its own"
        """,
        PYTHONPATH=stand_in,
    )


def test_one_that_fails_is_not_waited_for(stand_in):
    run(
        """
        import cupy, tenure, tenure.allocators.cupy as plug
        def fail(mr, route): raise RuntimeError("no such hook")
        hook, plug._PLUGS["cupy"].turn_on = plug._PLUGS["cupy"].turn_on, fail
        row = tenure.enable()["cupy"]
        assert (row.state, row.notes) == ("failed", ("no such hook",)), row
        assert "cupy" not in [row.library for row in tenure.disable()]
        # What was on is, and is found by the next disable.
        plug._PLUGS["cupy"].turn_on = hook
        tenure.enable("cupy")
        plug._PLUGS["cupy"].turn_on = fail
        assert tenure.enable()["cupy"].state == "failed"
        assert tenure.disable()["cupy"].state == "off" and cupy.cuda.get_allocator()(1) == "its own"
        """,
        PYTHONPATH=stand_in,
    )


def test_one_thread_imports_what_another_one_enables(stand_in, tmp_path):
    """The importer waits for `enable` at the end of the import, which `enable` must not wait for meanwhile."""
    code = "import threading, time\nthreading.current_thread().begun.set()\ntime.sleep(0.3)\n"
    (tmp_path / "cupy" / "__init__.py").write_text(code + STAND_IN)
    run(
        """
        import importlib, threading, tenure
        tenure.enable("cupy")
        thread = threading.Thread(target=importlib.import_module, args=("cupy",), daemon=True)
        thread.begun = threading.Event()
        thread.start()
        thread.begun.wait()
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        row = tenure.enable("cupy", mr=pool)["cupy"]
        assert (row.state, row.resource) == ("on", "PoolMemoryResource"), row
        thread.join()
        """,
        PYTHONPATH=stand_in,
        timeout=30,
    )


# The files of a package that stands in for each library. None has the library's hooks: what is called here is the plug's
# `turn_on`, and when.
FILES = {
    "cupy": ("cupy",),
    "torch": ("torch",),
    "numba": ("numba", "numba/cuda", "numba_cuda"),
    "numba-cuda-mlir": ("numba_cuda_mlir",),
    "warp": ("warp",),
    "cuda.core": ("cuda/core",),  # `cuda` has no file of its own
    "rmm": ("rmm",),
}


@pytest.fixture
def stand_ins(tmp_path, stand_in):
    """A package for every library, which notes that its last line ran."""
    for folder in {folder for folders in FILES.values() for folder in folders}:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "__init__.py").write_text("__version__ = '99.0'\ncomplete = True\n")
    return stand_in


RECORDER = """
        import importlib, sys
        import tenure, tenure.allocators as allocators
        turned = []
        class Recorder:
            def __init__(self, library): self.library = library
            def turn_on(self, mr, route):
                # Only whole modules are plugged into.
                assert sys.modules[self.library.module].complete
                turned.append((self.library.name, mr, route))
                return "a route", mr, ("a note",)
            def turn_off(self):
                turned.remove(next(one for one in turned if one[0] == self.library.name))
                return ""
        allocators._plug = Recorder
"""


@pytest.mark.parametrize("library", FILES)
def test_every_library_is_turned_on_by_its_import_and_once(stand_ins, library):
    module = _libraries.LIBRARIES[library].module
    assert set(FILES) == set(_libraries.LIBRARIES)
    run(
        RECORDER
        + f"""
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        row = tenure.enable({library!r}, mr=pool)[{library!r}]
        assert (row.state, row.resource) == ("waiting", "PoolMemoryResource"), row
        assert {module!r} not in sys.modules and not turned
        # What it lies in, and what is not it, turn nothing on.
        import json.tool
        if "." in {module!r}:
            importlib.import_module({module!r}.partition(".")[0])
        assert not turned
        found = importlib.import_module({module!r})
        assert turned == [({library!r}, pool, "auto")], turned
        assert found.__spec__.loader is found.__loader__ and type(found.__loader__).__name__ == "SourceFileLoader"
        importlib.import_module({module!r})
        assert len(turned) == 1
        row = allocators._on[{library!r}]
        assert (row.state, row.route, row.version, row.notes[0]) == ("on", "a route", "99.0", "a note"), row
        assert "was not tested" in row.notes[-1]
        # One that is there is turned on at once.
        found.__name__ += ".cu13"  # as cuda.core's says
        assert tenure.enable(found)[0].state == "on" and turned[1:] == [({library!r}, None, "auto")]
        del turned[1:]
        assert tenure.disable(found)[0].state == "off" and not turned
        assert not any(type(f).__name__ == "_Watch" for f in sys.meta_path)
        """,
        PYTHONPATH=stand_ins,
    )


def test_without_names_each_is_turned_on_as_it_is_imported(stand_ins):
    run(
        RECORDER
        + """
        assert {row.state for row in tenure.enable()} == {"waiting"}
        for number, library in enumerate(reversed(allocators.LIBRARIES.values()), 1):
            importlib.import_module(library.module)
            assert turned[-1] == (library.name, None, "auto") and len(turned) == number, turned
        assert {row.state for row in tenure.enable()} == {"on"}
        """,
        PYTHONPATH=stand_ins,
    )


def test_enable_begins_to_count_where_ipython_is_and_nowhere_else(stand_in):
    run(
        """
        import builtins, json, tenure
        from tenure import _tenure
        def begun():
            return json.loads(_tenure._report())["begun_ns"]
        tenure.enable("cupy")
        assert not begun()
        builtins.__IPYTHON__ = True
        tenure.enable("cupy")
        first = begun()
        assert first
        # What counts already is not begun anew, and what somebody ended is not begun again.
        tenure.enable("cupy")
        assert begun() == first
        tenure.report(False)
        tenure.enable("cupy")
        assert not tenure.report().counting
        """,
        PYTHONPATH=stand_in,
    )
