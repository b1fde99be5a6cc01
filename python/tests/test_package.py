"""The package as a whole: info, imports, what it needs, how the library is found."""

import os
import pathlib
import subprocess
import sys
import sysconfig

import pytest

import headrace

FOLDER = pathlib.Path(headrace.__file__).parent


def python(*arguments, **environment):
    # So that a child finds the package where this process has it.
    path = os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_info_tells_devices_kernels_and_versions():
    done = python("-m", "headrace", "info")
    assert done.returncode == 0, done.stderr
    names = [line.split("  ")[0] for line in done.stdout.splitlines()]
    assert {"version", "library", "build", "python", "numpy", "cpu", "cpu kernel"} <= set(names)
    assert any(name.startswith("cuda") for name in names), "devices, or why there are none"
    assert f"headrace {headrace.__version__}" in done.stdout
    assert "cpu_reference: row by row in double" in done.stdout


def test_a_wrong_command_line_exits_with_2():
    assert python("-m", "headrace").returncode == 2
    assert python("-m", "headrace", "bogus").returncode == 2


def test_import_needs_numpy_alone_and_no_gpu():
    code = "import sys, headrace; print(sorted(m for m in ('torch', 'transformers', 'ml_dtypes') if m in sys.modules))"
    done = python("-c", code, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_missing_library_is_an_import_error_with_a_remedy(tmp_path):
    copy = tmp_path / "headrace"
    copy.mkdir()
    for file in FOLDER.glob("*.py"):
        (copy / file.name).write_text(file.read_text())
    done = subprocess.run(
        [sys.executable, "-c", "import headrace"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "HEADRACE_LIBRARY": ""},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "ImportError: headrace: no libheadrace.so in " in done.stderr
    assert "set HEADRACE_LIBRARY" in done.stderr


def test_a_library_that_is_none_is_an_import_error(tmp_path):
    file = tmp_path / "libheadrace.so"
    file.write_text("no library")
    done = python("-c", "import headrace", HEADRACE_LIBRARY=str(file))
    assert done.returncode == 1
    assert f"ImportError: headrace: {file} could not be loaded" in done.stderr


def test_the_gil_is_released_during_work():
    """Another thread runs Python code while a call computes."""
    import threading
    import time

    import numpy as np

    q = np.ones((1, 2048, 8, 64), np.float32)
    headrace.attention(q, q, q)
    ticks, done = [], threading.Event()

    def work():
        headrace.attention(q, q, q)
        done.set()

    thread = threading.Thread(target=work)
    start = time.perf_counter()
    thread.start()
    while not done.is_set():
        ticks.append(time.perf_counter() - start)
        time.sleep(1e-4)
    thread.join()
    took = time.perf_counter() - start
    assert len(ticks) > 10 and ticks[len(ticks) // 2] < took


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has a GIL")
def test_import_leaves_the_gil_off():
    """Whatever NumPy this is: it must be one for such a Python too."""
    code = "import sys, headrace; print(sys._is_gil_enabled())"
    done = python("-c", code, PYTHON_GIL="")
    assert done.stdout.strip() == "False", done.stdout + done.stderr


def test_plans_are_made_anew_after_cache_clear(monkeypatch):
    import numpy as np

    q = np.ones((1, 3, 1, 4), np.float32)
    headrace.attention(q, q, q)
    monkeypatch.setenv("HEADRACE_KERNEL", "cpu_scalar_fwd")
    headrace.cache_clear()
    assert headrace.supports(q, q, q).kernel == "cpu_scalar_fwd"
    monkeypatch.setenv("HEADRACE_KERNEL", "nothing")
    headrace.cache_clear()
    with pytest.raises(NotImplementedError, match="HEADRACE_KERNEL=nothing asks for another"):
        headrace.attention(q, q, q)
    monkeypatch.undo()
    headrace.cache_clear()
    assert headrace.attention(q, q, q).shape == q.shape


def test_types_are_announced():
    assert (FOLDER / "py.typed").is_file()
    for name in headrace.__all__:
        thing = getattr(headrace, name)
        assert name == "__version__" or thing.__doc__, f"{name} has no docstring"


def test_types_are_right(tmp_path):
    pytest.importorskip("mypy")
    pytest.importorskip("transformers")
    done = python("-m", "mypy", "--cache-dir", str(tmp_path), str(FOLDER))
    assert done.returncode == 0, done.stdout + done.stderr
