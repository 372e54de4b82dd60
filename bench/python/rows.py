"""Rows of a record: what was measured, beside what, and whether its goal is met. No PyTorch."""

import dataclasses
import json
import math

PROTOCOL = (
    "one process for all methods of a row, in turns, the first another each round; random data; "
    "results compared with float64 or float32 references first; on a GPU 512 MB read before each "
    "timed call, but where calls are enqueued only; medians, with quartiles beside; device times "
    "are differences of CUDA events with the queue kept full, whole calls are host times until "
    "the result is there; peaks are of the bytes that are asked of the allocator"
)
OPERATORS = {"<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b}


@dataclasses.dataclass(frozen=True)
class Goal:
    """What a row is to show: in words, and as conditions on its own figures."""

    words: str
    conditions: tuple
    """(figure, "<=" or ">=", bound), all of which must hold; a bound is a number or a figure."""

    def missed(self, row):
        """The conditions that do not hold, in words."""
        found = []
        for figure, operator, bound in self.conditions:
            value, wanted = row.get(figure), row.get(bound) if isinstance(bound, str) else bound
            if not (is_number(value) and is_number(wanted)):
                found.append(f"{figure} or its bound was not measured")
            elif not OPERATORS[operator](value, wanted):
                found.append(f"{figure} is {value:g}, not {operator} {wanted:g}")
                limit = row.get("limit")
                if figure == "ours" and is_number(limit) and not OPERATORS[operator](limit, wanted):
                    found.append(f"its floor alone is {limit:g}")
                most = ratio(row.get("best_peer"), limit)
                if figure == "x_best_peer" and is_number(most) and most < wanted:
                    found.append(f"at its floor it would be {most:g}")
        return found


def is_number(x):
    """Whether this is a finite number."""
    return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)


def row(case, goal, ours, unit, peers=None, limit=None, **more):
    """A row of what was measured.

    `peers`: {name: number, or why there is none}, in the unit of `ours`, smaller is better;
    `limit`: the floor of the figure, where there is one; `more`: further figures.
    """
    timed = {name: value for name, value in (peers or {}).items() if is_number(value)}
    best = min(timed, key=timed.get) if timed else None
    found = {
        "case": case,
        "card": None,
        "ours": rounded(ours),
        "unit": unit,
        "peer": best,
        "best_peer": rounded(timed.get(best)),
        "x_best_peer": ratio(timed.get(best), ours),
        "limit": rounded(limit),
        "of_limit": ratio(limit, ours),
        "goal": goal.words if goal else None,
        "met": None,
    }
    found |= {key: rounded(value) for key, value in more.items()}
    if peers:
        found["peers"] = {name: rounded(value) for name, value in peers.items()}
    if goal:
        missed = goal.missed(found)
        found["met"] = not missed
        if missed:
            found["why"] = "; ".join(missed)
    return found


def failed(case, goal, error):
    """A row of which nothing was measured."""
    found = row(case, goal, None, None)
    found["why"] = error
    return found


def rounded(x):
    """A number with the digits that mean something."""
    if isinstance(x, float):
        return float(f"{x:.5g}") if math.isfinite(x) else None
    if isinstance(x, dict):
        return {key: rounded(value) for key, value in x.items()}
    return x


def ratio(a, b):
    """How many times b goes into a; None where one is missing."""
    return rounded(a / b) if is_number(a) and is_number(b) and b else None


class Record:
    """A record, rewritten after each row, so that a run that is cut off loses nothing.

    Rows of a case that was measured before are replaced; the others stay.
    """

    def __init__(self, path, groups, earlier=(), protocol=PROTOCOL):
        self.path, self.groups = path, list(groups)
        self.data = {"card": None, "protocol": protocol, "rows": []}
        for source in [*earlier, path]:
            if source.is_file():
                found = json.loads(source.read_text())
                self.data |= {key: value for key, value in found.items() if key != "rows"}
                self.take_rows(found["rows"])
        self.data["protocol"] = protocol

    def about(self, found):
        """What is true of all rows to come; versions are added to those that are known."""
        versions = self.data.get("versions", {}) | found.get("versions", {})
        self.data |= found | ({"versions": versions} if versions else {})

    def take(self, group, card, rows):
        """Adds rows of a group, measured on a card."""
        self.take_rows([row | {"card": card, "group": group} for row in rows])
        self.save()

    def take_rows(self, rows):
        by_case = {row["case"]: row for row in rows}
        kept = [by_case.pop(row["case"], row) for row in self.data["rows"]]
        self.data["rows"] = kept + list(by_case.values())
        order = {name: i for i, name in enumerate(self.groups)}
        self.data["rows"].sort(key=lambda row: order.get(row.get("group"), len(order)))

    def save(self):
        """Writes the file, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.data, indent=1, allow_nan=False) + "\n")
        partial.replace(self.path)


def line(row):
    """A row in one line, for the terminal."""
    verdict = {True: "met", False: "MISSED", None: "-"}[row["met"]]
    ours = "-" if row["ours"] is None else f"{row['ours']:g} {row['unit']}"
    x = "" if row["x_best_peer"] is None else f", {row['x_best_peer']:g} x {row['peer']}"
    why = f": {row['why']}" if row.get("why") else ""
    return f"{verdict:<6} {row['case']}: {ours}{x}{why}"
