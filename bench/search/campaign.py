"""What the campaigns' records of a card say as a whole. No PyTorch."""

import json
import pathlib

from python import rows

from . import FOLDER, goals

#: The campaigns' records; forward.json has the candidates.
FILES = ("forward.json", "compressed.json")
OLDER = "sm_80 kernel"
#: Rows bound by memory whose queries are short, where a launch's start and end do not count.
SHORT, BYTES = 32, 200_000_000


def campaign(w):
    """The row of all rows of an H100's campaigns; of another card there is none."""
    if "H100" not in w.card and not w.tiny:
        return
    goal = goals.GOALS[goals.CAMPAIGN](w.card)
    try:
        yield [campaign_row(goal, w.args.campaign, None if w.tiny else w.card)]
    except (OSError, ValueError, KeyError) as error:
        yield [rows.failed(goals.CAMPAIGN, goal, f"{type(error).__name__}: {error}")]


def campaign_row(goal, folder=None, card=None):
    """The slowest row beside a peer, and the farthest from our own read, of the records in a
    folder (the committed ones by default), which must be of the card."""
    kind = card.split()[1].lower() if card else "h200"
    folder = pathlib.Path(folder or FOLDER.parents[1] / "docs" / "measured" / kind)
    found = []
    for name in FILES:
        record = json.loads((folder / name).read_text())
        if card and record.get("gpu") != card:
            raise ValueError(f"{folder / name} is of {record.get('gpu')}, not of {card}")
        found += record["rows"]
    dead = [row["case"] for row in found if row.get("ours_ms") is None]
    if dead:
        raise ValueError(f"not measured: {'; '.join(dead)}")
    beside = [row for row in found if row.get("x_best_peer") and is_beside_peer(row)]
    slowest = min(beside, key=lambda row: row["x_best_peer"])
    reads = [row for row in found if is_short_read(row)]
    of_read = lambda row: row["read_ms"] / row["ours_ms"]
    farthest = min(reads, key=of_read)
    return rows.row(
        goals.CAMPAIGN,
        goal,
        1 / slowest["x_best_peer"],
        "× the best peer's time",
        of_read=of_read(farthest),
        slowest=slowest["case"],
        farthest=farthest["case"],
        n_beside_peers=len(beside),
        slower={
            row["case"]: 1 / row["x_best_peer"] for row in beside if row["x_best_peer"] < 1 / 1.02
        },
        reads={row["case"]: of_read(row) for row in reads},
    )


def is_beside_peer(row):
    """Whether a row compares what the card's own kernels do with a peer that does the same: exact
    f32 is not what the peers compute, who round to TF32; coarse to fine stands beside our own
    forward; kernels of older devices run where they are asked for by name."""
    ours = str(row.get("best_peer")).startswith("maxsim")
    return row.get("rate") != "f32" and not ours and not row["case"].endswith(OLDER)


def is_short_read(row):
    """Whether a row's time is that of reading its f16 documents, and of little else."""
    return (
        row.get("limit_is") == "memory"
        and row.get("element") == "f16"
        and row["query_len"] <= SHORT
        and row["bytes"] >= BYTES
        and bool(row.get("read_ms"))
    )
