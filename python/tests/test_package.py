"""The package as a whole: info, imports, dependencies, location of the library."""

import inspect
import os
import pathlib
import re
import subprocess
import sys
import sysconfig

import pytest

import headrace

FOLDER = pathlib.Path(headrace.__file__).parent


def python(*arguments, **environment):
    # Lets a child process find the same package.
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


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_submodules_are_imported_when_they_are_named(name):
    pytest.importorskip(name)
    code = f"import sys, headrace; before = '{name}' in sys.modules; print(before, headrace.{name}.__name__)"
    done = python("-c", code)
    assert done.stdout.split() == ["False", f"headrace.{name}"], done.stdout + done.stderr


def test_other_names_are_no_attributes():
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'bogus'"):
        headrace.bogus  # noqa: B018
    assert not hasattr(headrace, "_bogus")


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


ROOT = FOLDER.parent.parent
from_a_checkout = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="the package is installed")


@from_a_checkout
@pytest.mark.parametrize("page", ["README.md", "python/README.md"])
def test_the_first_program_of_a_readme_says_which_kernel_runs(page, capsys):
    program = re.search(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S).group(1)
    exec(program, {})
    assert "-> selected" in capsys.readouterr().out


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
    """Requires a NumPy that supports free-threaded Python."""
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
    with pytest.raises(NotImplementedError, match="HEADRACE_KERNEL=nothing names another kernel"):
        headrace.attention(q, q, q)
    monkeypatch.undo()
    headrace.cache_clear()
    assert headrace.attention(q, q, q).shape == q.shape


def test_types_are_announced():
    assert (FOLDER / "py.typed").is_file()
    for name in headrace.__all__:
        thing = getattr(headrace, name)
        assert name == "__version__" or thing.__doc__, f"{name} has no docstring"


TYPES = """
from typing import Any
import numpy as np
import torch
from typing_extensions import assert_type
import headrace
import headrace.torch as ht

T = torch.Tensor
x = np.ones(3)
t = torch.ones(3)
flag = bool(x.sum())

assert_type(headrace.attention(x, x, x, return_lse=True), tuple[Any, Any])
assert_type(headrace.attention(x, x, x, return_probs=True, causal=True), tuple[Any, Any])
assert_type(headrace.attention(x, x, x, return_lse=True, return_probs=True), tuple[Any, Any, Any])
headrace.attention(x, x, x, out=x, bias=x).anything
assert_type(headrace.attention_backward(x, x, x, x, x, x), headrace.Gradients)
assert_type(headrace.softmax(x, return_lse=True), tuple[Any, Any])
headrace.softmax(x).anything

assert_type(ht.attention(t, t, t), T)
assert_type(ht.attention(t, t, t, return_lse=False, causal=True, bias=t), T)
assert_type(ht.attention(t, t, t, return_lse=True), tuple[T, T])
assert_type(ht.attention(t, t, t, return_probs=True), tuple[T, T])
assert_type(ht.attention(t, t, t, return_lse=True, return_probs=True), tuple[T, T, T])
assert_type(ht.attention(t, t, t, return_lse=flag), T | tuple[T, ...])
assert_type(ht.flash_attn_func(t, t, t, 0.1, causal=True, num_splits=2), T)
assert_type(ht.flash_attn_func(t, t, t, return_attn_probs=True), tuple[T, T, T])
assert_type(ht.flash_attn_kvpacked_func(t, t), T)
assert_type(ht.flash_attn_kvpacked_func(t, t, return_attn_probs=True), tuple[T, T, T])
assert_type(ht.flash_attn_qkvpacked_func(t), T)
assert_type(ht.flash_attn_qkvpacked_func(t, return_attn_probs=True), tuple[T, T, T])
assert_type(ht.flash_attn_varlen_func(t, t, t, t, t, 3, 3), T)
assert_type(ht.flash_attn_varlen_kvpacked_func(t, t, t, t, 3, 3), T)
assert_type(ht.flash_attn_varlen_qkvpacked_func(t, t, 3, return_attn_probs=True), tuple[T, T, T])
assert_type(ht.flash_attn_varlen_func(t, t, t, t, t, 3, 3, return_attn_probs=True), tuple[T, T, T])
assert_type(ht.scaled_dot_product_attention(t, t, t, t), T)
assert_type(headrace.torch.attention(t, t, t), T)
"""
# Each is one error.
WRONG_TYPES = """
import torch
import headrace
import headrace.torch as ht

t = torch.ones(3)
ht.attention(t, t, t, softcap="a")
ht.attention(t, t, t, bogus=1)
ht.attention(t, t, t, bias=3)
ht.flash_attn_func(t, t, t, causal="a")
ht.flash_attn_func(t, t, t, qv=1)
headrace.attention(t, t, t, layout=3)
headrace.softmax(t, scale="a")
"""


@pytest.fixture(scope="session")
def mypy(tmp_path_factory):
    """Runs mypy with a shared cache, because analyzing PyTorch takes most of the time."""
    pytest.importorskip("mypy")
    pytest.importorskip("transformers")
    cache = str(tmp_path_factory.mktemp("mypy"))
    return lambda *arguments: python("-m", "mypy", "--cache-dir", cache, *arguments, MYPYPATH=str(FOLDER.parent))


def default_of(parameter):
    return "t" if parameter.default is parameter.empty else repr(parameter.default)


def with_every_argument(name, function):
    """A call with every argument by name, so that no overload lacks one."""
    parameters = inspect.signature(function).parameters.values()
    return f"{name}({', '.join(f'{p.name}={default_of(p)}' for p in parameters)})"


def test_types_of_results_follow_from_the_arguments(tmp_path, mypy):
    ht = pytest.importorskip("headrace.torch")
    others = (  # not of tensors alone
        "block_table_from_csr get_batch_indices_positions get_scheduler_metadata get_seq_lens kv_pages replace_sdpa"
    )
    names = [f"ht.{n}" for n in ht.__all__ if n not in others.split()] + ["headrace.attention", "headrace.softmax"]
    calls = [with_every_argument(n, getattr(ht if n[0:3] == "ht." else headrace, n.split(".")[1])) for n in names]
    for name, text in (("right", TYPES + "\n".join(calls) + "\n"), ("wrong", WRONG_TYPES)):
        (tmp_path / f"{name}.py").write_text(text)
    done = mypy("--strict", str(tmp_path / "right.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    done = mypy("--strict", str(tmp_path / "wrong.py"))
    lines = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error: " in line}
    assert lines == {i for i, line in enumerate(WRONG_TYPES.splitlines(), 1) if "(t, " in line}, done.stdout


def test_types_are_right(mypy):
    done = mypy(str(FOLDER))
    assert done.returncode == 0, done.stdout + done.stderr
