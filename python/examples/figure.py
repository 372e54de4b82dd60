"""A picture of a training, as SVG text."""

from __future__ import annotations

import html

WIDTH, HEIGHT = 860, 360
LEFT, TOP, BOTTOM = 64, 48, 312
#: Where the loss ends and where the bars are.
LOSS_RIGHT, BARS_LEFT = 560, 640

STYLE = (
    "text{font:13px sans-serif;fill:#333}.title{font-size:15px;font-weight:bold}"
    ".grid{stroke:#ddd}.raw{stroke:#9ecae1;fill:none}.smooth{stroke:#08519c;fill:none;"
    "stroke-width:2}.before{fill:#bdbdbd}.after{fill:#08519c}"
)


def training(title: str, losses: list[float], before: float, after: float) -> str:
    """The loss of every step with its running mean, and nDCG@10 before and after."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 26, title, "title"),
        *_loss(losses),
        *_bars(before, after),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def running_mean(values: list[float], width: int) -> list[float]:
    """The mean of each value and those before it, of as many."""
    means, total = [], 0.0
    for i, value in enumerate(values):
        total += value - (values[i - width] if i >= width else 0.0)
        means.append(total / min(i + 1, width))
    return means


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">'
            f"{html.escape(text)}</text>")


def _line(points: list[tuple[float, float]], kind: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" class="{kind}"/>'


def _loss(losses: list[float]) -> list[str]:
    highest = max(losses) * 1.05 or 1.0

    def points(values: list[float]) -> list[tuple[float, float]]:
        step = (LOSS_RIGHT - LEFT) / max(1, len(values) - 1)
        return [(LEFT + i * step, BOTTOM - value / highest * (BOTTOM - TOP))
                for i, value in enumerate(values)]

    parts = []
    for i in range(5):
        y = BOTTOM - i / 4 * (BOTTOM - TOP)
        parts.append(_line([(LEFT, y), (LOSS_RIGHT, y)], "grid"))
        parts.append(_text(LEFT - 8, y + 4, f"{highest * i / 4:.2f}", "", "end"))
    parts.append(_line(points(losses), "raw"))
    parts.append(_line(points(running_mean(losses, max(1, len(losses) // 30))), "smooth"))
    parts.append(_text(LEFT, BOTTOM + 20, "1"))
    parts.append(_text(LOSS_RIGHT, BOTTOM + 20, f"{len(losses)} steps", "", "end"))
    parts.append(_text((LEFT + LOSS_RIGHT) / 2, BOTTOM + 38, "loss of a batch, and running mean",
                       "", "middle"))
    return parts


def _bars(before: float, after: float) -> list[str]:
    parts = []
    for i, (name, value) in enumerate((("before", before), ("after", after))):
        x, height = BARS_LEFT + i * 100, value * (BOTTOM - TOP)
        parts.append(f'<rect x="{x}" y="{BOTTOM - height:.1f}" width="70" height="{height:.1f}" '
                     f'class="{name}"/>')
        parts.append(_text(x + 35, BOTTOM - height - 6, f"{value:.3f}", "", "middle"))
        parts.append(_text(x + 35, BOTTOM + 20, name, "", "middle"))
    parts.append(_line([(BARS_LEFT - 10, BOTTOM), (BARS_LEFT + 180, BOTTOM)], "grid"))
    parts.append(_text(BARS_LEFT + 85, BOTTOM + 38, "nDCG@10, held out", "", "middle"))
    return parts
