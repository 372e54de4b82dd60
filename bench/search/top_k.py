"""Times the selection of the best documents of each query, alone and behind our scores.

    python3 -m bench.search.top_k --out DIR            every case into DIR/top_k.json
    python3 -m bench.search.top_k CASE ... --out DIR   these cases; `list` prints their names

Protocol as in the forward campaign (timing.py): methods in turns, cold caches, device times by
events with the queue kept full. A selection is compared with torch.topk first. Its floor is a read
of the scores. `--device cpu --scale 0.001` tries the script without a GPU.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import sys

import torch

import cases
import data
import ours
import peers
import timing
from runner import Bench, Prepared


@dataclasses.dataclass(frozen=True)
class Search:
    """Scores of queries with documents, and the best k of each query."""

    name: str
    case: cases.Case
    k: int
    goal: str
    """What is to be seen, in words."""
    met: object
    """Whether it is, of the times {method: ms}."""


def search(name, shape, k, goal, met):
    n_queries, query_len, n_docs, doc_len = shape
    words = f"{n_queries} x {query_len}, {n_docs} documents x {doc_len}, top {k}"
    return Search(name, cases.Case(name, words, *shape), k, goal, met)


SEARCHES = [
    search(
        "one-query",
        (1, 32, 20_000, 300),
        100,
        "top-k adds at most 10 us",
        lambda ms: ms["scores + top-k"] - ms["scores"] <= 0.010,
    ),
    search(
        "queries-32",
        (32, 32, 50_000, 128),
        100,
        "at most 1.06 x our scores alone",
        lambda ms: ms["scores + top-k"] <= 1.06 * ms["scores"],
    ),
]

# Rows, scores of each, k.
SELECTIONS = [
    (1, 20_000, 100),
    (32, 50_000, 100),
    (1, 1_000_000, 100),
    (32, 1_000_000, 100),
    (32, 1_000_000, 10),
    (32, 1_000_000, 1000),
    (32, 1_000_000, 4096),
]


def check(selection, scores, k):
    """Compares what a selection has found with torch.topk: the same scores in the same order, and
    where no other is equal the same documents."""
    k = min(k, scores.shape[1])
    ids = torch.full((scores.shape[0], selection.k), -2, dtype=torch.int64)
    best = torch.zeros(ids.shape)
    selection.read(ids.data_ptr(), best.data_ptr())
    ids, best = ids[:, :k], best[:, :k]
    wanted, places = (found.cpu() for found in torch.topk(scores, k, dim=1))
    if not torch.equal(best, wanted):
        raise ValueError("other scores than torch.topk")
    if not torch.equal(scores.cpu().gather(1, ids), wanted):
        raise ValueError("documents that do not have the scores")
    differ = wanted[:, 1:] != wanted[:, :-1]
    alone = torch.ones_like(ids, dtype=torch.bool)
    alone[:, 1:] &= differ
    alone[:, :-1] &= differ
    # The last may be equal to one that is not there.
    alone[:, -1] = False
    if not torch.equal(ids[alone], places[alone]):
        raise ValueError("other documents than torch.topk")


class Whole(Prepared):
    """Our scores of a case."""

    def tokens(self, problem):
        case, tokens = problem.case, self.device.tokens
        queries = (problem.queries.data_ptr(), case.dim, case.n_queries, case.query_len)
        documents = (problem.documents.data_ptr(), case.dim, problem.n_items, case.doc_len)
        return [tokens(case.element, *queries), tokens(case.element, *documents)]


def run_search(bench, wanted):
    """A row: scores alone, with our selection, and with torch.topk; the peers' with torch.topk."""
    case = wanted.case.scaled(bench.args.scale)
    problem = data.Problem(case, bench.args.device)
    one = Whole(bench, problem)
    top_k = ours.TopK(bench.device, one.call, wanted.k)
    scores = one.run().view(case.n_queries, case.n_docs)
    top_k()
    check(top_k, scores, wanted.k)
    k = min(wanted.k, case.n_docs)

    def whole():
        one.call()
        top_k()

    def with_torch():
        one.call()
        return torch.topk(scores, k, dim=1)

    def with_topk(peer):
        return lambda: torch.topk(peer().view(case.n_queries, -1), k, dim=1)

    methods = {"scores": one.call, "scores + top-k": whole, "scores + torch.topk": with_torch}
    errors = {}
    for name, call in ({} if bench.args.no_peers else peers.calls(problem)).items():
        if isinstance(call, Exception):
            errors[f"{name} + torch.topk"] = {"error": timing.said(call)}
        else:
            methods[f"{name} + torch.topk"] = with_topk(call)
    results = timing.measure(bench.timer, methods, bench.args.seconds, warm=False) | errors
    ms = {name: found["ms"] for name, found in results.items() if "ms" in found}
    others = {name: time for name, time in ms.items() if not name.startswith("scores")}
    best = min(others, key=others.get, default=None)
    own = ms["scores + top-k"]
    return {
        "case": case.words,
        "name": wanted.name,
        "ours": own,
        "unit": "ms",
        "best_peer": best,
        "peer": others.get(best),
        "x_best_peer": round(others[best] / own, 4) if best else None,
        "limit": ms["scores"],
        "of_limit": round(ms["scores"] / own, 4),
        "adds_us": round((own - ms["scores"]) * 1e3, 2),
        "goal": wanted.goal,
        "met": bool(wanted.met(ms)),
        "methods": results,
    }


def run_selection(bench, n_rows, n, k):
    """A row: our selection alone among random scores, torch.topk, and a read of the scores."""
    n = max(64, int(n * bench.args.scale) // 64 * 64)
    device = bench.args.device
    case = cases.Case("selection", "", n_rows, 1, n, 1, dim=64)
    # Scores that a call would write; the call itself is made of few tokens and never measured.
    problem = data.Problem(case, device)
    one = Whole(bench, problem)
    one.run()
    scores = one.scores.view(n_rows, n)
    if bench.on_gpu:
        scores.normal_()
    top_k = ours.TopK(bench.device, one.call, k)
    top_k()
    check(top_k, scores, k)
    most = min(k, n)
    methods = {"top-k": top_k, "torch.topk": lambda: torch.topk(scores, most, dim=1)}
    if bench.on_gpu:
        matrix = bench.device.tokens("f32", scores.data_ptr(), 64, n_rows * n // 64, 1)
        for grid in ours.READ_GRIDS:
            methods[f"read {grid}"] = bench.device.read(one.call.stream, matrix, grid)
    results = timing.measure(bench.timer, methods, bench.args.seconds)
    ms = {name: found["ms"] for name, found in results.items() if "ms" in found}
    reads = [time for name, time in ms.items() if name.startswith("read")]
    limit = min(reads) if reads else None
    row = {
        "case": f"top {k} of {n_rows} x {n} scores",
        "ours": ms["top-k"],
        "unit": "ms",
        "best_peer": "torch.topk",
        "peer": ms["torch.topk"],
        "x_best_peer": round(ms["torch.topk"] / ms["top-k"], 4),
        "limit": limit,
        "of_limit": round(limit / ms["top-k"], 4) if limit else None,
        "goal": "at most 0.1 ms" if (n_rows, k) == (32, 100) and n > 500_000 else None,
        "methods": results,
    }
    row["met"] = ms["top-k"] <= 0.1 if row["goal"] else None
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="`list`, or names of cases")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT", "out"))
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="measuring time per case")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--scale", type=float, default=1.0, help="documents, to try the script")
    args = parser.parse_args()
    runs = {wanted.name: (lambda bench, one=wanted: run_search(bench, one)) for wanted in SEARCHES}
    for n_rows, n, k in SELECTIONS:
        name = f"select-{n_rows}-{n}-{k}"
        runs[name] = lambda bench, shape=(n_rows, n, k): run_selection(bench, *shape)
    if args.cases == ["list"]:
        print("\n".join(runs))
        return 0
    bench = Bench(args)
    card = torch.cuda.get_device_name() if bench.on_gpu else "CPU"
    args.out.mkdir(parents=True, exist_ok=True)
    rows, failed = [], 0
    for name in args.cases or runs:
        try:
            row = runs[name](bench) | {"card": card}
            print(
                f"{row['case']}: {row['ours']} ms, {row['best_peer']} {row['peer']}, "
                f"limit {row['limit']}, {row['goal']}: {row['met']}"
            )
        except Exception as error:
            row, failed = {"case": name, "card": card, "error": timing.said(error)}, failed + 1
            print(f"{name}: {row['error']}")
        rows.append(row)
        text = json.dumps({"rows": rows}, indent=1, allow_nan=False) + "\n"
        (args.out / "top_k.json").write_text(text)
        if bench.on_gpu:
            torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
