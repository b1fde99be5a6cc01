"""A tool's table as text, CSV, JSON and Markdown; the last column holds numbers."""

import csv
import io
import json

FORMS = ("text", "csv", "json", "md")


def table(columns, rows, form, name, summary, text_line=None):
    """`rows` of texts below `columns`; CSV has no summary. `name`: the rows in JSON. `text_line`: (row, width of the
    first column) -> a line of the text, all columns where there is none."""
    if form == "json":
        return json.dumps({"summary": summary, name: [dict(zip(columns, row)) for row in rows]}, indent=2) + "\n"
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([columns, *rows])
        return text.getvalue()
    if form == "md":
        lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) - 1) + "---:|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        return "\n".join(lines) + f"\n\n{summary}\n"
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(len(columns))]
    everything = lambda row, _: "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip()
    return "".join((text_line or everything)(row, widths[0]) + "\n" for row in rows) + summary + "\n"
