"""bench/plot.py on the tree's results."""

import json
import pathlib
import sys

import pytest

pytest.importorskip("matplotlib")

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
sys.path.insert(0, str(ROOT / "bench"))

import plot  # noqa: E402

MEMORY = RESULTS / "memory-zen3.json"
SPEED = RESULTS / "peers-attention_cuda-h200.json"


def test_memory_curves_are_the_columns():
    result = json.loads(MEMORY.read_text())
    (axes,) = plot.draw(result).axes
    curves = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert len(curves) == len(plot.CURVES)
    for phase, key, name, _, _ in plot.CURVES:
        rows = [row for row in result["rows"] if row["phase"] == phase]
        assert curves[name] == [[row["seqlen_q"], row[key]] for row in rows]
    assert [text.get_text() for text in axes.get_xticklabels()] == "512 1k 2k 4k 8k 16k 32k 64k 128k".split()


def test_each_shape_has_a_memory_panel():
    result = json.loads(MEMORY.read_text())
    result["rows"] += [{**row, "causal": "bottom-right", "num_kv_heads": 4} for row in result["rows"]]
    titles = [axes.get_title() for axes in plot.draw(result).axes]
    assert titles == [
        "bf16, batch 1, 16 heads, head_dim 128, no mask",
        "bf16, batch 1, 16 / 4 heads, head_dim 128, causal bottom-right",
    ]


def test_speed_panels_have_a_group_of_bars_a_length():
    result = json.loads(SPEED.read_text())
    plain = [row for row in result["rows"] if row["num_heads"] == row["num_kv_heads"]]
    panels = plot.draw(result).axes
    assert len(panels) == len({(row["causal"], row["head_dim"]) for row in plain})
    bars = [bar.get_height() for axes in panels for bars in axes.containers[-1:] for bar in bars]
    assert sorted(bars) == sorted(row["tflops"] for row in plain)


def test_speed_panels_hold_peers_of_the_same_run_alone():
    """Rates of other runs are not plotted."""
    result = json.loads(SPEED.read_text())
    for row in result["rows"]:
        row["fa2"] = row["fa3"] = 400.0
        assert row["rounds"].keys() == {"headrace", "cudnn"}
    for axes in plot.draw(result).axes:
        assert [bars.get_label() for bars in axes.containers] == ["cuDNN", "Headrace"]


@pytest.mark.parametrize("count, text", [(512, "512 B"), (2**20, "1 MiB"), (3 * 2**40, "3 TiB"), (2**52, "4096 TiB")])
def test_bytes_are_short(count, text):
    assert plot.bytes_text(count, 0) == text


@pytest.mark.parametrize("result", [MEMORY, SPEED], ids=lambda path: path.stem)
def test_the_same_result_gives_the_same_file(result, tmp_path, monkeypatch):
    files = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for file in files:
        monkeypatch.setattr(sys, "argv", ["plot.py", str(result), "--out", str(file)])
        assert plot.main() == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "Headrace" in files[0].read_text()
