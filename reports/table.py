"""A table as data, and its renderings in Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Item:
    """One cell of a table.

    Attributes:
        text: what every format prints.
        badge: outcome in words, printed after the text.
        bold: emphasised.
        sort: what HTML sorts by; the text without it.
        details: further lines that HTML prints below.
        ref: key of the runs behind it, for HTML's provenance dialogs.
        tone: class of meaning for HTML (`better`, `worse`, `muted`).
    """

    text: str
    badge: str = ""
    bold: bool = False
    sort: float | None = None
    details: tuple[str, ...] = ()
    ref: str = ""
    tone: str = ""

    @property
    def printed(self) -> str:
        """Text and badge, for formats that have lines only."""
        return ", ".join(part for part in (self.text, self.badge) if part)


@dataclass(frozen=True)
class Table:
    """A table of the report.

    Attributes:
        name: file name without ending.
        title: heading, in a few words.
        context: what all runs of the table share.
        caption: what the numbers are.
        header: one entry a column.
        rows: items; the first of each row is its heading.
        notes: printed below.
        records: the same content for machines, one mapping a line with equal keys; none where
            those of another table hold it.
        folded: whether the page shows it on demand only.
    """

    name: str
    title: str
    context: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Item, ...], ...]
    notes: tuple[str, ...] = ()
    records: tuple[Mapping[str, Value], ...] = field(default=(), repr=False)
    folded: bool = False

    @property
    def endings(self) -> tuple[str, ...]:
        """Of the files that it is written to."""
        return ("md", "tex", "csv") if self.records else ("md", "tex")

    def holds_words(self, index: int) -> bool:
        """Whether a column holds text only, so that it is set flush left."""
        return index == 0 or not any(row[index].sort is not None for row in self.rows)


def to_markdown(table: Table) -> str:
    """GitHub's Markdown with title, caption and notes."""
    lines = [f"### {_md(table.title)}", "", f"{_md(table.context)}. {_md(table.caption)}", ""]
    lines.append("| " + " | ".join(_md(text) for text in table.header) + " |")
    marks = [":---" if table.holds_words(i) else "---:" for i in range(len(table.header))]
    lines.append("| " + " | ".join(marks) + " |")
    for row in table.rows:
        cells = [f"**{_md(item.printed)}**" if item.bold else _md(item.printed) for item in row]
        lines.append("| " + " | ".join(cells) + " |")
    if table.notes:
        lines += ["", *(f"- {_md(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def md_line(text: str) -> str:
    """Text for one line of Markdown outside tables; what has no meaning there stays readable."""
    text = re.sub(r"[\\*`]|<(?=[A-Za-z/!?])|(?<=\])\(", r"\\\g<0>", " ".join(text.splitlines()))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\_", text)


def _md(text: str) -> str:
    text = " ".join(text.splitlines())
    for char in "\\|*_<`":
        text = text.replace(char, f"\\{char}")
    return text


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "±": r"$\pm$", "−": r"$-$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "–": "--",
    "×": r"$\times$", "[": "{[}", "]": "{]}",
}  # fmt: skip


def tex_escape(text: str) -> str:
    """Text for LaTeX, safe in cells and captions."""
    return "".join(_TEX.get(char, char) for char in text)


def to_latex(table: Table) -> str:
    """A `table` environment for the packages booktabs; notes below in small print."""
    columns = "".join("l" if table.holds_words(i) else "r" for i in range(len(table.header)))
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{tex_escape(f'{table.title}. {table.context}. {table.caption}')}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(tex_escape(text) for text in table.header) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = [
            rf"\textbf{{{tex_escape(item.printed)}}}" if item.bold else tex_escape(item.printed)
            for item in row
        ]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.notes:
        notes = r" \\ ".join(tex_escape(note) for note in table.notes)
        lines += [r"\par\smallskip", rf"\parbox{{\linewidth}}{{\footnotesize {notes}}}"]
    lines.append(r"\end{table}")
    return "\n".join(lines) + "\n"


def to_csv(records: Sequence[Mapping[str, Value]], digits: int | None = None) -> str:
    """Records as CSV.

    Args:
        records: one a line.
        digits: significant ones of floats; None keeps all, so that reading gives the same numbers.
    """
    buffer = io.StringIO()
    if records:
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(records[0].keys())
        writer.writerows([_csv(value, digits) for value in record.values()] for record in records)
    return buffer.getvalue()


def _csv(value: Value, digits: int | None) -> str:
    """Text of one value; None is empty, truth is `true` or `false`."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if digits is None else f"{value:.{digits}g}"
    return str(value)
