#!/usr/bin/env python3
"""The rates in README.md, docs/performance.md and docs/limits.md are those of the results that they link.

- "1.16x, worst case 0.98x ... ([text](RESULT.json)" and table rows "| 1.16x | 0.98x | [rows](RESULT.json) |": geometric
  mean and minimum of the ratios to the peer of the same run.
- Grids "| head_dim | mask | 512 keys | ... |": every cell, from the result that is linked last above them.
"""

import json
import math
import posixpath
import re

import checklib

PAGES = ("README.md", "docs/performance.md", "docs/limits.md")
NUMBER = r"(\d+\.\d+)x"
SUMMARIES = (
    re.compile(rf"{NUMBER}[ \w]*, worst case\s+{NUMBER}[^()\[]*\(\[[^\]]*\]\(([^()\s]+\.json)\)"),
    re.compile(rf"\| {NUMBER} \| {NUMBER} \| \[[^\]]*\]\(([^()\s]+\.json)\)"),
)
LINK = re.compile(r"\(([^()\s]+\.json)\)")
GRID = re.compile(r"\| head_dim \| mask \| (?P<lengths>\d+ keys[^\n]*)\|\n\|[-:| ]+\n(?P<rows>(?:\|[^\n]*\n)+)")


def peer_of(row):
    """The peer that ran in the same rounds."""
    return next(name for name in row["rounds"] if name != "headrace")


def plain_rows(result):
    """The cells of the grid on a GPU: those without grouped heads."""
    return [row for row in result["rows"] if row["num_heads"] == row["num_kv_heads"]]


def ratios_of(result):
    """Rates of Headrace divided by the peer's."""
    rows = result["rows"]
    if "rounds" not in rows[0]:
        return [row["ratio"] for row in rows]
    return [row["tflops"] / row[peer_of(row)] for row in plain_rows(result)]


def cell_text(row, product_tflops):
    """As the grids have it: sustained runs with their energy, others with their share of a matrix product."""
    rate, ratio = f"{row['tflops']:.0f}", f"{row['tflops'] / row[peer_of(row)]:.2f}x"
    if "pj_per_flop" in row:
        return f"{rate}, {ratio}; {row['pj_per_flop']:.2f}, {row[peer_of(row) + '_pj_per_flop']:.2f}"
    return f"{rate}, {100 * row['tflops'] / product_tflops:.0f} %, {ratio}"


def check_summaries(page, text, load):
    for mean, least, name in (found for form in SUMMARIES for found in form.findall(text)):
        ratios = ratios_of(load(name))
        values = math.exp(sum(map(math.log, ratios)) / len(ratios)), min(ratios)
        for said, value in zip((mean, least), values):
            expected = f"{value:.{len(said.partition('.')[2])}f}"
            if said != expected:
                yield f"{page}: {said}x: {name} has {expected}x"


def check_grids(page, text, load):
    for found in GRID.finditer(text):
        name = LINK.findall(text[: found.start()])[-1]
        result = load(name)
        lengths = [int(n) for n in re.findall(r"\d+", found["lengths"])]
        for line in found["rows"].splitlines():
            head_dim, mask, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            for length, said in zip(lengths, cells):
                wanted = {"head_dim": int(head_dim), "causal": mask == "causal", "seqlen_q": length}
                row = next(r for r in plain_rows(result) if all(r[key] == value for key, value in wanted.items()))
                expected = cell_text(row, result["meta"]["product_tflops"])
                if said != expected:
                    yield f"{page}: '{said}' at head_dim {head_dim}, {mask}, {length}: {name} has '{expected}'"


def check(root):
    findings = []
    for page in PAGES:
        text = checklib.read_text(root / page) if (root / page).is_file() else ""

        def load(name, page=page):
            return json.loads((root / posixpath.dirname(page) / name).read_text(encoding="utf-8"))

        findings += [*check_summaries(page, text, load), *check_grids(page, text, load)]
    return findings


def row(tflops, peer, length=512, **more):
    heads = {"num_heads": 2, "num_kv_heads": 2}
    shape = {"head_dim": 64, "causal": True, "seqlen_q": length, **heads}
    return {**shape, "tflops": tflops, "cudnn": peer, "fa3": 1, "rounds": {"headrace": [], "cudnn": []}, **more}


RESULT = json.dumps({"meta": {"product_tflops": 800}, "rows": [row(200, 100), row(90, 180, 2048)]})
SUSTAINED = json.dumps(
    {"meta": {"product_tflops": 1}, "rows": [row(200, 100, pj_per_flop=1.5, cudnn_pj_per_flop=2)]}
)


def page(text, result=RESULT):
    return {"docs/performance.md": text, "r.json": result, "docs/limits.md": "", "README.md": ""}


def grid(row_text):
    head = "| head_dim | mask | 512 keys | 2048 |\n|---|---|---:|---:|\n"
    return f"([all](../r.json))\n\n{head}| 64 | causal | {row_text} |\n"


CASES = [
    ("a sentence", page("Mean 1.00x, worst case\n0.50x ([all](../r.json))."), None),
    ("another mean", page("Mean 1.01x, worst case 0.50x ([all](../r.json))."), "1.01x: ../r.json has 1.00x"),
    ("another least", page("1.00x cuDNN, worst case 0.51x; more ([all](../r.json))."), "0.51x: ../r.json has 0.50x"),
    ("digits as said", page("1.0x, worst case 0.5x ([all](../r.json))."), None),
    ("a row", {**page(""), "README.md": "| f | 1.00x | 0.50x | [rows](r.json) |\n"}, None),
    ("a wrong row", {**page(""), "README.md": "| f | 1.10x | 0.50x | [rows](r.json) |\n"}, "README.md: 1.10x"),
    ("ratios", page("2.0x, worst case 1.0x ([a](../r.json))", '{"rows": [{"ratio": 4}, {"ratio": 1}]}'), None),
    ("a grid", page(grid("200, 25 %, 2.00x | 90, 11 %, 0.50x")), None),
    ("a wrong cell", page(grid("200, 25 %, 2.00x | 91, 11 %, 0.50x")), "2048: ../r.json has '90, 11 %, 0.50x'"),
    ("sustained", page(grid("200, 2.00x; 1.50, 2.00"), SUSTAINED), None),
    ("sustained, wrong", page(grid("200, 2.00x; 1.50, 2.01"), SUSTAINED), "has '200, 2.00x; 1.50, 2.00'"),
]

if __name__ == "__main__":
    checklib.main(__doc__, check, CASES)
