#!/usr/bin/env python3
"""Plots a result. Needs matplotlib.

bench/peers/attention_cuda.py, attention_cuda_backward.py
                                one panel per head_dim and mask, one group of bars per sequence length: TFLOP/s of
                                Headrace and the peers that ran in the same rounds
headrace bench memory           one panel per dtype and shape: bytes by sequence length, next to standard attention
bench/results/quantised_kv_divergence.json
                                one panel per model: KL and perplexity by the types of keys and values

usage: bench/plot.py RESULT.json --out PLOT.svg
"""

import argparse
import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (after the choice of the backend)

# Row key, name, colour; distinct in greyscale and for colour-blind readers (Okabe and Ito, 2008).
SIDES = (
    ("fa2", "FlashAttention-2", "#999999"),
    ("cudnn", "cuDNN", "#56B4E9"),
    ("tflops", "Headrace", "#0072B2"),
)


# Phase, row key, name, colour and line style; quadratic growth is dashed.
CURVES = (
    ("forward", "standard_bytes", "standard forward: S, P (formula)", "#E69F00", "--"),
    ("backward", "standard_bytes", "standard backward: P, dP, dS (formula)", "#D55E00", "--"),
    ("forward", "bytes", "Headrace forward: out, lse, workspace", "#56B4E9", "-"),
    ("backward", "bytes", "Headrace backward: out, lse, workspace", "#0072B2", "-"),
)


def length_text(length):
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)


def draw_speed_panel(axes, rows, sides):
    width = 0.8 / len(sides)
    for index, (key, name, colour) in enumerate(sides):
        places = [group + (index - (len(sides) - 1) / 2) * width for group in range(len(rows))]
        values = [row.get(key) or 0 for row in rows]
        bars = axes.bar(places, values, width, label=name, color=colour)
        if key == "tflops":
            axes.bar_label(bars, fmt="%.0f", fontsize=7)
    lengths = [row["seqlen_q"] for row in rows]
    axes.set_xticks(range(len(rows)), [length_text(n) for n in lengths])
    axes.set_title(f"head_dim {rows[0]['head_dim']}, {'causal' if rows[0]['causal'] else 'no mask'}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def draw_speed(result):
    plain = [row for row in result["rows"] if row["num_heads"] == row["num_kv_heads"]]
    panels = sorted({(row["causal"], row["head_dim"]) for row in plain})
    sides = [side for side in SIDES if side[0] == "tflops" or any(side[0] in row["rounds"] for row in plain)]
    columns = len({head_dim for _, head_dim in panels})
    figure, grid = plt.subplots(
        len(panels) // columns, columns, figsize=(10, 5), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, panel in zip(grid.flat, panels, strict=True):
        draw_speed_panel(axes, [row for row in plain if (row["causal"], row["head_dim"]) == panel], sides)
    for axes in grid[:, 0]:
        axes.set_ylabel("TFLOP/s")
    meta = result["meta"]
    phase = "forward" if plain[0]["op"] == "fwd" else "backward"
    title = [f"Attention {phase}", plain[0]["dtype"], meta["machine"], meta["mode"], meta["date"][:10]]
    figure.suptitle(", ".join(title), fontsize=10)
    handles, names = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(sides), fontsize=8, frameon=False)
    return figure


def shape_of(row):
    """The values that all rows of a panel share."""
    return tuple(row[key] for key in ("dtype", "batch", "num_heads", "num_kv_heads", "head_dim", "causal"))


def draw_memory_panel(axes, rows):
    for phase, key, name, colour, line in CURVES:
        points = [(row["seqlen_q"], row[key]) for row in rows if row["phase"] == phase]
        axes.plot(*zip(*points, strict=True), line, color=colour, label=name, marker=".")
    lengths = sorted({row["seqlen_q"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(lengths, [length_text(length) for length in lengths])
    axes.yaxis.set_major_formatter(bytes_text)
    axes.set_xlabel("sequence length")
    dtype, batch, num_heads, num_kv_heads, head_dim, causal = shape_of(rows[0])
    heads = f"{num_heads} heads" if num_heads == num_kv_heads else f"{num_heads} / {num_kv_heads} heads"
    mask = "no mask" if causal == "none" else f"causal {causal}"
    axes.set_title(f"{dtype}, batch {batch}, {heads}, head_dim {head_dim}, {mask}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)


def bytes_text(count, _position):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:g} {unit}"
        count /= 1024
    return f"{count:g} TiB"


def draw_memory(result):
    shapes = list(dict.fromkeys(shape_of(row) for row in result["rows"]))
    figure, grid = plt.subplots(
        1, len(shapes), figsize=(6 * len(shapes), 4.5), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, shape in zip(grid.flat, shapes, strict=True):
        draw_memory_panel(axes, [row for row in result["rows"] if shape_of(row) == shape])
    grid[0, 0].set_ylabel("bytes in addition to q, k, v and their gradients")
    meta = result["meta"]
    figure.suptitle(f"Memory of attention, {meta['machine']}, {meta['date'][:10]}", fontsize=10)
    handles, names = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def draw_kv_types(result):
    models = result["models"]
    figure, grid = plt.subplots(1, len(models), figsize=(6 * len(models), 4.5), squeeze=False, layout="constrained")
    for axes, model in zip(grid.flat, models, strict=True):
        rows = sorted((row for row in model["rows"] if row["kl"] > 0), key=lambda row: row["kl"])
        names = [row["k"] if row["k"] == row["v"] else f"{row['k']} / {row['v']}" for row in rows]
        colours = ["#0072B2" if "kivi" in name else "#999999" for name in names]
        bars = axes.barh(names, [row["kl"] for row in rows], color=colours)
        axes.bar_label(bars, [f"{row['perplexity']:.2f}" for row in rows], padding=3, fontsize=8)
        axes.set_xscale("log")
        axes.margins(x=0.15)
        axes.invert_yaxis()
        exact = next(row["perplexity"] for row in model["rows"] if row["kl"] == 0)
        axes.set_title(f"{model['model'].split('.Q')[0].split(' (')[0]}; 16 bits: {exact:.2f}", fontsize=9)
        axes.set_xlabel("KL from a cache of 16 bits, nats; beside the bars: perplexity")
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Types of keys / values", fontsize=10)
    return figure


def draw(result):
    """Draws the plot for the result's benchmark."""
    if "models" in result:
        return draw_kv_types(result)
    return draw_memory(result) if result["meta"]["benchmark"] == "memory" else draw_speed(result)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="an SVG file")
    options = parser.parse_args()
    # Keep text as text and make the output reproducible.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "headrace"})
    figure = draw(json.loads(options.result.read_text()))
    figure.savefig(options.out, metadata={"Date": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
