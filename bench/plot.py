#!/usr/bin/env python3
"""Draws a result of bench/peers/attention_cuda.py as the papers do: a panel for each head_dim and mask, a group of bars
for each sequence length, TFLOP/s beside those of the peers. Needs matplotlib.

usage: bench/plot.py RESULT.json --out PLOT.svg
"""

import argparse
import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend comes first)

# Key of a row, name, colour: distinct in grey and for colour-blind eyes (Okabe and Ito, 2008).
SIDES = (
    ("fa2", "FlashAttention-2", "#999999"),
    ("cudnn", "cuDNN", "#56B4E9"),
    ("fa3", "FlashAttention-3 (scaled)", "#E69F00"),
    ("tflops", "Headrace", "#0072B2"),
)


def draw_panel(axes, rows, sides):
    width = 0.8 / len(sides)
    for index, (key, name, colour) in enumerate(sides):
        places = [group + (index - (len(sides) - 1) / 2) * width for group in range(len(rows))]
        values = [row.get(key) or 0 for row in rows]
        bars = axes.bar(places, values, width, label=name, color=colour)
        if key == "tflops":
            axes.bar_label(bars, fmt="%.0f", fontsize=7)
    lengths = [row["seqlen_q"] for row in rows]
    axes.set_xticks(range(len(rows)), [f"{n // 1024}k" if n % 1024 == 0 else str(n) for n in lengths])
    axes.set_title(f"head_dim {rows[0]['head_dim']}, {'causal' if rows[0]['causal'] else 'no mask'}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def draw(result):
    plain = [row for row in result["rows"] if row["num_heads"] == row["num_kv_heads"]]
    panels = sorted({(row["causal"], row["head_dim"]) for row in plain})
    sides = [side for side in SIDES if any(row.get(side[0]) for row in plain)]
    columns = len({head_dim for _, head_dim in panels})
    figure, grid = plt.subplots(
        len(panels) // columns, columns, figsize=(10, 5), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, panel in zip(grid.flat, panels, strict=True):
        draw_panel(axes, [row for row in plain if (row["causal"], row["head_dim"]) == panel], sides)
    for axes in grid[:, 0]:
        axes.set_ylabel("TFLOP/s")
    meta = result["meta"]
    title = ["Attention forward", plain[0]["dtype"], meta["machine"], meta["mode"], meta["date"][:10]]
    figure.suptitle(", ".join(title), fontsize=10)
    handles, names = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(sides), fontsize=8, frameon=False)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="an SVG file")
    options = parser.parse_args()
    # Text stays text; the same input gives the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "headrace"})
    figure = draw(json.loads(options.result.read_text()))
    figure.savefig(options.out, metadata={"Date": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
