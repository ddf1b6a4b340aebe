"""``tenure.rmm``: RMM's modules over tenure, and programs that say ``import rmm``."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import textwrap
import zipfile

import pytest
import tenure
import tenure.rmm as rmm
from tenure.rmm.pylibrmm.helper import parse_bytes
from tenure.rmm.pylibrmm.utils import as_stream


def run(*arguments, **options):
    """``python -m tenure.rmm ...`` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tenure.rmm", *map(str, arguments)], capture_output=True, text=True, timeout=60, **options
    )


def python(text, **options):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=60, **options)


@pytest.fixture
def script(tmp_path):
    def write(text, name="script.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return file

    return write


# ------------------------------------------------------------------------------------------------------------- re-exports


def test_the_names_are_tenures_own():
    assert rmm.DeviceBuffer is tenure.DeviceBuffer
    assert rmm.mr.PoolMemoryResource is tenure.mr.PoolMemoryResource
    assert rmm.pylibrmm.stream.Stream is tenure.Stream
    assert rmm.mr is importlib.import_module("tenure.rmm.mr")
    assert rmm.level_enum is tenure.logger.level_enum
    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), "2MiB", "8 MiB")
    assert rmm.DeviceBuffer(size=10, mr=pool).mr is pool


@pytest.mark.parametrize("name", ["mr", "pylibrmm.stream", "pylibrmm.memory_resource", "pylibrmm.logger", "_cuda.gpu", "rmm"])
def test_all_is_there(name):
    module = importlib.import_module(f"tenure.rmm.{name}")
    for one in module.__all__:
        assert hasattr(module, one)


def test_a_pool_without_sizes_takes_nothing():
    used = tenure.sim.used() if tenure.sim.active() else None
    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource())
    assert pool.pool_size() == 0
    if used is not None:
        assert tenure.sim.used() == used
    half = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), "50%")
    free = rmm.mr.available_device_memory()[0]
    assert 0 < half.pool_size() <= free * 1.1


@pytest.mark.parametrize(
    "text, size", [("0", 0), ("1.5kb", 1500), ("2 KiB", 2048), ("3mib", 3 << 20), ("1b", 1), (7, 7), ("1.", 1)]
)
def test_sizes_by_rmms_grammar(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["2k", "x", "", " 1", "-1", "1 eb", "1e3", "1e400"])
def test_what_rmm_takes_for_no_size(text):
    with pytest.raises(ValueError, match="Could not parse"):
        parse_bytes(text)


def test_as_stream():
    assert as_stream(tenure.DEFAULT_STREAM) is tenure.DEFAULT_STREAM
    with pytest.raises(TypeError, match="cannot be None"):
        as_stream(None)


def test_the_gpu_module():
    gpu = rmm._cuda.gpu
    assert gpu.getDevice() == tenure.get_current_device()
    assert gpu.getDeviceCount() == tenure.device_count()
    gpu.setDevice(gpu.getDevice())
    assert gpu.deviceGetName(0) == tenure.device_info(0)["name"]
    assert gpu.driverGetVersion() >= 12000 and gpu.runtimeGetVersion() >= 12000
    assert gpu.getDeviceAttribute(75, 0) == tenure.device_info(0)["compute_capability"][0]
    assert gpu.getDeviceProperties(0).major == tenure.device_info(0)["compute_capability"][0]
    for wrong in (-1, 99):
        with pytest.raises(gpu.CUDARuntimeError):
            gpu.setDevice(wrong)
    error = gpu.CUDARuntimeError(101)
    assert pickle.loads(pickle.dumps(error)).status == 101


# ------------------------------------------------------------------------------------------------------------ import rmm


PROGRAM = """
    import sys
    import rmm, rmm.mr, rmm.pylibrmm.stream
    from rmm.mr import experimental
    import tenure
    assert rmm.DeviceBuffer is tenure.DeviceBuffer and rmm.mr.PoolMemoryResource is tenure.mr.PoolMemoryResource
    assert sys.modules["rmm.mr"] is rmm.mr is sys.modules["tenure.rmm.mr"]
    print(sys.argv, __name__, rmm.DeviceBuffer.to_device(b"bytes").tobytes())
"""


def test_a_script(script, tmp_path):
    file = script(PROGRAM + "\n    print(__file__, sys.path[0], __spec__)")
    answer = run(file, "a", "--b")
    assert answer.stdout == f"{[str(file), 'a', '--b']} __main__ b'bytes'\n{file} {tmp_path} None\n", answer.stderr


def test_a_module(script, tmp_path):
    script(PROGRAM + "\n    print(__spec__.name, __package__)", "package/__main__.py")
    script("", "package/__init__.py")
    answer = run("-m", "package", "a", cwd=tmp_path)
    main = tmp_path / "package" / "__main__.py"
    assert answer.stdout == f"{[str(main), 'a']} __main__ b'bytes'\npackage.__main__ package\n", answer.stderr
    script(PROGRAM, "single.py")
    assert "['" in run("-m", "single", cwd=tmp_path).stdout


def test_code_standard_input_a_folder_and_a_zip(script, tmp_path):
    code = "import rmm, sys, tenure; print(sys.argv, rmm.DeviceBuffer is tenure.DeviceBuffer)"
    assert run("-c", code, "x").stdout == "['-c', 'x'] True\n"
    assert run("-", "y", input=code).stdout == "['-', 'y'] True\n"
    script("import beside\n" + code, "folder/__main__.py")
    script("", "folder/beside.py")
    folder = tmp_path / "folder"
    assert run(folder, "z").stdout == f"{[str(folder), 'z']} True\n"
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(folder / "__main__.py", "__main__.py")
        archive.write(folder / "beside.py", "beside.py")
    assert run(packed).stdout == f"{[str(packed)]} True\n"


def test_what_cannot_be_run(tmp_path):
    for arguments, said in (
        (["nothing.py"], "can't open file 'nothing.py'"),
        (["-m", "nothing_like_it"], "No module named nothing_like_it"),
        (["-m", "json"], "'json' is a package and cannot be directly executed"),
        (["-m"], "argument expected"),
        ([tmp_path], "can't find '__main__' module"),
        (["--wrong"], "unknown option"),
        ([], "usage"),
    ):
        answer = run(*arguments)
        assert answer.returncode != 0 and said in answer.stderr and "Traceback" not in answer.stderr, answer.stderr
    assert run("--help").returncode == 0


def test_exit_codes_and_errors(script):
    assert run(script("import sys, rmm; sys.exit(3)")).returncode == 3
    answer = run(script("import rmm\nraise LookupError('on purpose')"))
    assert answer.returncode == 1 and "LookupError: on purpose" in answer.stderr and 'script.py", line 2' in answer.stderr
    assert run(script("x = (")).returncode == 1


def test_main_is_the_programs(script):
    """Classes of the program can be pickled, and threads and exit handlers see its globals."""
    answer = run(
        script(
            """
            import atexit, pickle, sys, threading, time, rmm

            class Mine:
                pass

            kept = "kept"
            assert type(pickle.loads(pickle.dumps(Mine()))) is Mine
            assert sys.modules["__main__"].Mine is Mine
            atexit.register(lambda: print("exit", kept, Mine.__module__))
            threading.Thread(target=lambda: (time.sleep(0.2), print("thread", kept))).start()
            """
        )
    )
    assert answer.stdout == "thread kept\nexit kept __main__\n", answer.stderr


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing(script, method):
    """A child has the alias too: it reads the program again, imports included, and gets what the parent pickled."""
    answer = run(
        script(
            f"""
            import multiprocessing
            import rmm, rmm.mr

            def work(size):
                import rmm.pylibrmm.device_buffer, tenure
                return rmm.DeviceBuffer is tenure.DeviceBuffer, rmm.__name__, size

            if __name__ == "__main__":
                context = multiprocessing.get_context({method!r})
                with context.Pool(1) as pool:
                    print(pool.apply(work, (7,)))
            """
        )
    )
    assert answer.stdout == "(True, 'tenure.rmm', 7)\n", answer.stderr


def test_other_programs_are_none_of_ours(script):
    answer = run(
        script(
            """
            import subprocess, sys, rmm
            code = "import sys, importlib.util; print(importlib.util.find_spec('tenure.rmm') is not None, 'tenure' in sys.modules)"
            print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
            """
        )
    )
    assert "True True" in answer.stdout, answer.stderr  # find_spec imports the parent, and nothing more


def test_install_from_inside():
    answer = python(
        """
        import tenure.rmm
        assert not tenure.rmm.installed()
        tenure.rmm.install()
        tenure.rmm.install()
        assert tenure.rmm.installed()
        import rmm, importlib, importlib.metadata, importlib.resources, pickle, tenure
        assert rmm is tenure.rmm and rmm.__spec__.name == "tenure.rmm"
        assert importlib.reload(rmm) is rmm
        import rmm.pylibrmm.cuda_stream_pool as pools
        assert pools.CudaStreamPool is tenure.CudaStreamPool
        assert importlib.metadata.version("rmm") == "26.10.0" == importlib.metadata.version("rmm-cu13")
        assert importlib.resources.files("rmm").joinpath("__init__.py").is_file()
        assert b"tenure" in pickle.dumps(rmm.mr.PoolMemoryResource)
        try:
            import rmm.nothing_like_it
        except ModuleNotFoundError as error:
            assert "nothing_like_it" in str(error), error
        else:
            raise AssertionError
        """
    )
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("name", ["rmm", "rmm.mr", "librmm"])
def test_the_real_rmm_is_loaded(name):
    answer = python(
        f"""
        import sys, types
        sys.modules[{name!r}] = types.ModuleType({name!r})
        import tenure.rmm
        try:
            tenure.rmm.install()
        except ImportError as error:
            assert "the real RMM is loaded already" in str(error) and error.name == {name!r}
        else:
            raise AssertionError
        assert not tenure.rmm.installed()
        """
    )
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("name", ["cudf", "pylibcudf", "cuml", "cugraph", "pylibraft", "cuvs", "rapidsmpf"])
def test_packages_that_need_rmms_compiled_modules(name):
    answer = run("-c", f"import {name}")
    assert answer.returncode == 1
    last = answer.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: {name} needs RMM's own compiled modules") and "bridge" in last
    # Who can do without it is left alone.
    assert run("-c", f"try:\n import {name}\nexcept ImportError:\n print('without')").stdout == "without\n"


def test_importing_makes_no_driver_call():
    answer = python("import tenure, tenure.rmm; print(tenure.sim.driver_calls())", env=dict(os.environ, TENURE_DEVICE="sim"))
    assert answer.stdout == "0\n", answer.stderr
