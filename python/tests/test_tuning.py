"""headrace.use_tuning: plans take the choices of a file; the bits stay."""

import re

import numpy as np
import pytest

import headrace


@pytest.fixture(autouse=True)
def forgets():
    yield
    headrace.use_tuning(None)


def test_calls_take_the_choices_of_a_file(tmp_path):
    path = tmp_path / "tuning.txt"
    head = f"headrace-tuning 1\nversion {headrace.__version__}\n"
    path.write_text(head + "device another\nend 0\n")
    with pytest.raises(ValueError, match="not of this device") as error:
        headrace.use_tuning(path)
    device = re.search(r"\[(.*)\]", str(error.value)).group(1)
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((1, 192, 8, 64), dtype=np.float32) for _ in range(3))
    explained = headrace.explain(q, k, v)
    kernel = re.search(r"(\S+): -> selected", explained).group(1)
    own = headrace.attention(q, k, v)
    sizes = "seqlen_q=192 seqlen_k=192 num_heads=8 num_kv_heads=8 head_dim=64 head_dim_v=64"
    path.write_text(f"{head}device {device}\n{kernel} {sizes}:tile_m=96:us=1 own_us=2\nend 1\n")
    headrace.use_tuning(path)
    assert f"tile_m=96: 100 % faster than the kernel's own choices; {path}" in headrace.explain(q, k, v)
    assert np.array_equal(headrace.attention(q, k, v), own)
    headrace.use_tuning(None)
    assert headrace.explain(q, k, v) == explained


def test_damaged_and_missing_files_are_refused(tmp_path):
    path = tmp_path / "tuning.txt"
    path.write_text("nonsense")
    with pytest.raises(ValueError, match="its first line is not"):
        headrace.use_tuning(path)
    with pytest.raises(FileNotFoundError):
        headrace.use_tuning(tmp_path / "none")
