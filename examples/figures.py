"""Figures of requests per second over time, for the pages that scripts of this folder write."""

from dataclasses import dataclass, field
from pathlib import Path

LEFT, WIDTH, HEIGHT, TOP, GAP = 60, 860, 150, 30, 60


@dataclass
class Line:
    """The requests/s in each second."""

    values: list[int]
    colour: str
    width: float = 2
    label: str = ""


@dataclass
class Panel:
    """Lines under a title, up to `largest` requests/s."""

    title: str
    lines: list[Line]
    largest: float
    # The distance of two lines of the grid.
    tick: int
    # Seconds at which something happens: a letter and its colour.
    marks: list[tuple[str, float, str]] = field(default_factory=list)


def write(file: Path, panels: list[Panel], end: int, step: int) -> None:
    """Writes the panels below each other; the axis names every `step`-th second up to `end`."""

    def x(second: float) -> str:
        return f"{LEFT + WIDTH * second / end:.1f}"

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {len(panels) * HEIGHT + TOP + GAP + 40}" font-family="sans-serif" font-size="12">']
    out.append('<rect width="100%" height="100%" fill="white"/>')
    for number, panel in enumerate(panels):
        base = TOP + number * (HEIGHT + GAP) + HEIGHT

        def y(value: float, base: int = base, largest: float = panel.largest) -> str:
            return f"{base - HEIGHT * value / largest:.1f}"

        for tick in range(0, int(panel.largest), panel.tick):
            out.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y(tick)}" y2="{y(tick)}" stroke="#ddd"/>')
            out.append(f'<text x="{LEFT - 6}" y="{float(y(tick)) + 4:.1f}" text-anchor="end">{tick}</text>')
        out.append(f'<text x="{LEFT}" y="{base - HEIGHT - 10}" font-weight="bold">{panel.title}</text>')
        for offset, line in enumerate(panel.lines):
            points = " ".join(f"{x(second + 0.5)},{y(value)}" for second, value in enumerate(line.values))
            out.append(f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="{line.width}"/>')
            if line.label:
                out.append(f'<text x="{LEFT + WIDTH - 160}" y="{base - HEIGHT + 10 + 16 * offset}" fill="{line.colour}">{line.label}</text>')
        for letter, second, colour in panel.marks:
            out.append(f'<line x1="{x(second)}" x2="{x(second)}" y1="{base - HEIGHT}" y2="{base}" stroke="{colour}" stroke-dasharray="3 3"/>')
            out.append(f'<text x="{float(x(second)) + 3:.1f}" y="{base - 5}" fill="{colour}">{letter}</text>')
        for second in range(0, end + 1, step):
            out.append(f'<text x="{x(second)}" y="{base + 16}" text-anchor="middle">{second}</text>')
    out.append(f'<text x="{LEFT + WIDTH / 2}" y="{len(panels) * HEIGHT + TOP + GAP + 35}" text-anchor="middle">seconds</text>')
    file.write_text("\n".join([*out, "</svg>", ""]))
