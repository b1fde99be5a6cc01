"""Results as text, CSV, Markdown or JSON."""

import csv
import functools
import io
import json
import math

# Key in JSON and CSV, title, format in text and Markdown.
COLUMNS = (
    ("case", "case", "{}"),
    ("caches", "caches", "{}"),
    ("headrace_ms", "headrace ms", "{:.3f}"),
    ("torch_ms", "torch ms", "{:.3f}"),
    ("torch_variant", "torch call", "{}"),
    ("ratio", "torch/headrace", "{:.2f}"),
    ("headrace_gflops", "GFLOP/s", "{:.1f}"),
    ("headrace_gbytes", "GB/s", "{:.1f}"),
    ("headrace_error", "error", "{:.1e}"),
    ("torch_error", "torch error", "{:.1e}"),
    ("is_correct", "correct", "{}"),
    ("kernel", "kernel", "{}"),
)
RATIO = "torch/headrace"


def geometric_mean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else None


def summary_of(rows):
    """Summary of the rows' ratios; above 1 Headrace is faster."""
    groups = {"all": [row for row in rows if row.get("ratio")]}
    for row in groups["all"]:
        groups.setdefault(row["group"], []).append(row)
    return {
        name: {
            "cases": len(members),
            "ratio_geometric_mean": geometric_mean([row["ratio"] for row in members]),
            "ratio_min": min(row["ratio"] for row in members),
            "slowest_case": min(members, key=lambda row: row["ratio"])["case"],
        }
        for name, members in groups.items()
        if members
    }


def _cell(row, key, pattern):
    value = row.get(key)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return pattern.format(value)


def _grid(rows, columns):
    shown = [c for c in columns if any(row.get(c[0]) is not None for row in rows)]
    lines = [[title for _, title, _ in shown]]
    lines += [[_cell(row, key, pattern) for key, _, pattern in shown] for row in rows]
    numeric = [pattern != "{}" for _, _, pattern in shown]
    return lines, numeric


def _summary_lines(summary, ratio):
    return [
        f"{ratio} {name}: geometric mean {s['ratio_geometric_mean']:.2f}, "
        f"min {s['ratio_min']:.2f} ({s['slowest_case']}), {s['cases']} cases"
        for name, s in summary.items()
    ]


def as_text(result, columns=COLUMNS, ratio=RATIO):
    lines, numeric = _grid(result["rows"], columns)
    widths = [max(len(line[i]) for line in lines) for i in range(len(numeric))]
    head = [f"{key}: {value}" for key, value in result["meta"].items()]
    body = [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric)
        ).rstrip()
        for line in lines
    ]
    return "\n".join(head + [""] + body + [""] + _summary_lines(result["summary"], ratio)) + "\n"


def as_md(result, columns=COLUMNS, ratio=RATIO):
    lines, numeric = _grid(result["rows"], columns)
    head = [f"- {key}: {value}" for key, value in result["meta"].items()]
    body = ["| " + " | ".join(line) + " |" for line in lines]
    body.insert(1, "|" + "|".join("---:" if right else "---" for right in numeric) + "|")
    tail = [f"- {line}" for line in _summary_lines(result["summary"], ratio)]
    return "\n".join(head + [""] + body + [""] + tail) + "\n"


def as_csv(result, columns=COLUMNS, ratio=RATIO):
    out = io.StringIO()
    writer = csv.DictWriter(
        out, [key for key, _, _ in columns], extrasaction="ignore", lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(result["rows"])
    return out.getvalue()


def as_json(result, columns=COLUMNS, ratio=RATIO):
    return json.dumps(result, indent=2) + "\n"


FORMATS = {"text": as_text, "csv": as_csv, "json": as_json, "md": as_md}


def formats(columns, ratio):
    """FORMATS for rows with other columns."""
    return {name: functools.partial(f, columns=columns, ratio=ratio) for name, f in FORMATS.items()}
