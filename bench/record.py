"""forward.json and compressed.json: what a campaign writes, made of what its cases measured. No
PyTorch here."""

import hashlib
import json
import math
import pathlib
import re

import cases

FOLDER = pathlib.Path(__file__).resolve().parent
PROTOCOL = (
    "methods in turns, the first another each round; 512 MB read before each timed call (warm_ms: "
    "the same call instead); medians of CUDA-event differences with the queue kept full; results "
    "compared with float64 on a sample of documents first; each case in a process of its own"
)
# What is different where documents are compressed.
PROTOCOL_COMPRESSED = PROTOCOL.replace(
    "results compared with float64 on a sample of documents first",
    "peers get the codes and scales that the library made; results compared with float64 of what "
    "the codes stand for on a sample of documents first, ours within the stated bound of rounding "
    "(score_bounds) and, relative, 5e-3 (FP8), 1e-5 (INT8) and 2e-3 (PLAID), the peers' within "
    "2e-2; coarse to fine stands beside our own f16 forward, not a peer, and its scores must be at "
    "most 1 + 2e-6 of float64 of the f16 tokens, with a mean relative loss of at most 1e-3",
)
PROTOCOLS = {"compressed.json": PROTOCOL_COMPRESSED}

# Hashes of the kernels, by file.
SUMS = ("ptx_sha256", "cubin_sha256")

ORDER = {name: i for i, name in enumerate(cases.BY_NAME)}


class Record:
    """The file, rewritten after each case, so that a campaign that is cut off loses nothing."""

    def __init__(self, path, earlier=None):
        self.path = path
        source = path if path.is_file() else earlier
        self.data = {"gpu": None, "driver": None, "date": None, "versions": {}}
        self.data["protocol"] = PROTOCOLS.get(path.name, PROTOCOL)
        self.data |= {
            "ptx_sha256": {},
            "cubin_sha256": {},
            "roofs": {},
            "rows": [],
            "scaling": [],
            "baselines": [],
        }
        self.data |= {"cold_start": {}}
        if source is not None and source.is_file():
            self.data |= json.loads(source.read_text())
        self.data |= kernels_sha256()

    def take(self, found):
        """Adds what a case found; rows of the same case are replaced."""
        for key in ("gpu", "driver", "date"):
            if found.get(key):
                self.data[key] = found[key]
        self.data["versions"] |= found.get("versions", {})
        for key in ("roofs", "cold_start"):
            self.data[key] |= found.get(key, {})
        if found.get("scaling"):
            self.data["scaling"] = found["scaling"]
        new = [self.finished(row) for row in found.get("rows", [])]
        self.data["rows"] = replaced(self.data["rows"], new)
        self.data["baselines"] = replaced(self.data["baselines"], found.get("baselines", []))
        self.data["rows"].sort(key=lambda row: ORDER.get(row["name"], len(ORDER)))
        self.save()
        return new

    def finished(self, row):
        """A row with the figures that its results and the roofs give."""
        row = dict(row)
        own = row.get("ours", {})
        ours_ms = own.get("ms")
        timed = {name: peer["ms"] for name, peer in row.get("peers", {}).items() if "ms" in peer}
        best = min(timed, key=timed.get) if timed else None
        row |= {
            "ours_ms": ours_ms,
            "best_peer": best,
            "best_peer_ms": timed.get(best),
            "x_best_peer": ratio(timed.get(best), ours_ms),
            "limit_ms": None,
            "of_limit": None,
            "x_plain": ratio(ours_ms, row.get("plain_ms")),
        }
        rate = self.data["roofs"].get(row.get("rate"), {}).get("tflop_per_s")
        if rate and row.get("read_ms") and math.isfinite(row["read_ms"]):
            compute_ms = row["flop"] / rate / 1e9
            row["limit_ms"] = round(max(compute_ms, row["read_ms"]), 5)
            row["limit_is"] = "arithmetic" if compute_ms > row["read_ms"] else "memory"
            row["of_limit"] = ratio(row["limit_ms"], ours_ms)
        if "f16" in row:
            row["x_f16"] = ratio(row["f16"].get("ms"), ours_ms)
        # Which build of the kernel ran: a later campaign may only replace some rows.
        kernel = re.match(r"maxsim_\w+", own.get("plan", ""))
        if kernel:
            row["kernel"] = kernel[0]
            row["kernel_sha256"] = self.data["ptx_sha256"].get(f"{kernel[0]}.ptx")
        return row

    def save(self):
        text = json.dumps(self.data, indent=1, allow_nan=False) + "\n"
        partial = self.path.with_suffix(".partial")
        partial.write_text(text)
        partial.replace(self.path)


def ratio(a, b):
    return round(a / b, 4) if a and b else None


def replaced(rows, new):
    """The rows with those of the same case replaced in place, and others added."""
    by_case = {row["case"]: row for row in new}
    kept = [by_case.pop(row["case"], row) for row in rows]
    return kept + list(by_case.values())


def rows_of(earlier, found):
    """The rows of an earlier file, marked where other kernels than now made them.

    A row that says its `kernels` is of now where these are; one that does not, where all are.
    """
    same = all(earlier.get(key) == found[key] for key in SUMS)

    def is_of_now(row):
        if "kernels" not in row:
            return same
        return all(
            found[key].get(file) == made
            for key in SUMS
            for file, made in row["kernels"].get(key, {}).items()
        )

    return [row if is_of_now(row) else row | {"earlier_kernels": True} for row in earlier["rows"]]


def kernels_of(jit_log, found):
    """Hashes of the kernels that a process has loaded, as the library's log of them says."""
    names = set(re.findall(r"^# (\w+) on ", jit_log, re.M))
    return {
        key: {file: made for file, made in found[key].items() if file.split(".")[0] in names}
        for key in SUMS
    }


def kernels_sha256():
    """Of the bundle's manifest, or of the files of the checkout."""
    manifest = FOLDER.parent / "manifest.json"
    if manifest.is_file():
        found = json.loads(manifest.read_text())
        return {"ptx_sha256": found["ptx"], "cubin_sha256": found.get("cubins", {})}
    sums = {}
    for kind in ("ptx", "cubin"):
        files = sorted((FOLDER.parent / "host" / "ptx").glob(f"*.{kind}"))
        sums[f"{kind}_sha256"] = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
    return sums


def table(rows):
    """A short table of rows for the terminal."""
    lines = [
        f"{'case':<66} {'ours':>9} {'peer':>9} {'x peer':>7} {'goal':>5} {'of limit':>8} "
        f"{'goal':>5} {'plain':>6}"
    ]
    for row in rows:
        if row.get("ours_ms") is None:
            lines.append(
                f"{row['case']:<66} FAILED: {row.get('ours', {}).get('error', row.get('error'))}"
            )
            continue
        goals = row.get("targets", {})
        lines.append(
            f"{row['case']:<66} {row['ours_ms']:9.4f} {figure(row['best_peer_ms'], 9, 4)}"
            f" {figure(row['x_best_peer'], 7, 3)} {figure(goals.get('x'), 5, 2)}"
            f" {figure(row['of_limit'], 8, 3)} {figure(goals.get('limit'), 5, 2)}"
            f" {figure(row.get('x_plain'), 6, 3)}"
        )
    return "\n".join(lines)


def figure(value, width, digits):
    return f"{value:{width}.{digits}f}" if value is not None else " " * (width - 1) + "-"
