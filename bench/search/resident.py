"""Searches of documents that are on the device, by all their scores, and the selection alone."""

import cases
import data
import ours
import runner
import torch
from python import rows, world

from . import goals, searches
from .spread import Spread

#: Rows, scores of each, k.
SELECTIONS = [
    (32, 1_000_000, 100),
    (1, 20_000, 100),
    (32, 50_000, 100),
    (1, 1_000_000, 100),
    (32, 1_000_000, 10),
    (32, 1_000_000, 1000),
    (32, 1_000_000, 4096),
]
#: Queries that whole searches take in turn.
SETS = 16
#: By how much scores of two kernels may differ, relative: sums of some 100 numbers of 24 bits.
LAST_BITS = 2e-6


def queries(w):
    """The row of many queries."""
    goal = goals.GOALS[goals.QUERIES](w.card)
    with world.reported(goals.QUERIES, goal) as found:
        problem = data.Problem(searches.shaped(w, 32, 32, 50_000, 128), w.device)
        one = searches.Ours(runner.bench_of(w), problem, 100)
        host = problem.queries.cpu()[None]
        found.append(search_row(w, goals.QUERIES, goal, one, host))
        one.free()
    yield found


def query(w):
    """The row of one query, and of the search by way of codes."""
    goal = goals.GOALS[goals.QUERY](w.card)
    with world.reported(goals.QUERY, goal) as found:
        case = searches.shaped(w, 1, 32, 20_000, 300)
        spread = Spread(w.device, case.dim, case.n_docs)
        problem = searches.Spread(case, w.device, spread)
        documents = problem.padded
        host = spread.queries(documents, SETS, case.query_len).cpu()[:, None]
        one = searches.Ours(runner.bench_of(w), problem, 100)
        one.hold()
        proven = one.search(host)
        more = {"data": "with the similarity spread of the real set"}
        found.append(search_row(w, goals.QUERY, goal, one, host, proven, **more))
        one.free()
    yield found


def search_row(w, case, goal, one, host, proven=None, **more):
    """Scores, with the selection, and the peers': on the device, and whole from `host`."""
    problem = one.problem
    scores = one.scores()
    error = problem.largest_error(scores, problem.sample(world.SAMPLE, torch.float16))
    if not error <= world.TOLERANCE:
        raise ValueError(f"scores are off by {error:.2e} relative")
    one.best()
    searches.check_selection(one.read(), scores)
    wanted = torch.topk(scores, one.k, dim=1).values
    check = searches.check_best(scores, wanted)
    good, bad = w.working(searches.others(problem, one.k), check)
    times = w.device_ms({"maxsim": one.best, "scores": one.one.call} | good)
    whole = {name: searches.from_host(problem, host, best) for name, best in good.items()}
    more |= whole_figures(w, one, host, proven, whole)
    middle = world.figures(times)
    scores_ms, own = middle["scores"], middle["maxsim"]
    spreads = world.spreads(times)
    del times["scores"]
    n_bytes = problem.documents.nbytes + problem.queries.nbytes
    limit = w.limits.device_ms(n_bytes, problem.flop(), "f16")
    return world.compared(
        case,
        goal,
        times,
        "ms",
        bad,
        limit,
        scores_ms=scores_ms,
        x_scores=rows.ratio(own, scores_ms),
        adds_us=(own - scores_ms) * 1e3,
        x_flash=rows.ratio(middle.get(searches.FLASH), own),
        x_retrieve=rows.ratio(middle.get(searches.RETRIEVE), own),
        scores_quartiles=spreads["scores"],
        **more,
    )


def whole_figures(w, one, host, proven, others):
    """Whole searches, from queries in host memory to ids there; each method takes the queries of
    `host` in turn."""
    rank = one.rank(host)
    checked = {}
    if proven is not None:
        checked = compare(len(host), rank, proven)
    methods = {"maxsim": rank} | ({} if proven is None else {"maxsim, INT8, proven": proven})
    times = w.whole_ms(in_turn(methods | others))
    middle = world.figures(times)
    found = {"whole_ms": middle, "whole_quartiles": world.spreads(times)} | checked
    if proven is not None:
        own = middle["maxsim, INT8, proven"]
        found["proven_x_flash"] = rows.ratio(middle.get(searches.FLASH), own)
    return found


def in_turn(methods):
    """Methods of a query's number as calls that take another query each time."""

    def of(call):
        turn = [0]

        def next_one():
            turn[0] += 1
            return call(turn[0])

        return next_one

    return {name: of(call) for name, call in methods.items()}


def compare(n_sets, rank, proven):
    """Compares searches by way of codes with those of all scores: how many places are not proven,
    and how many documents were scored again. The kernels that score all and a few documents may
    differ in the last bits of a score: documents that are no further apart may change places."""
    not_proven, n_rescored = 0, []
    for i in range(n_sets):
        all_of, found = rank(i), proven(i)
        if not torch.allclose(all_of.scores, found.scores, rtol=LAST_BITS, atol=0):
            raise ValueError(f"query {i}: other scores by way of codes")
        for scores, ids, others in zip(all_of.scores, all_of.ids, found.ids):
            of_id = dict(zip(ids.tolist(), scores))
            place = torch.stack([of_id.get(one, scores[-1]) for one in others.tolist()])
            if not torch.allclose(place, scores, rtol=LAST_BITS, atol=0):
                raise ValueError(f"query {i}: other documents by way of codes")
        not_proven += int((all_of.ids.shape[1] - found.n_proven).sum())
        n_rescored += found.n_rescored.tolist()
    n_rescored.sort()
    return {
        "not_proven": not_proven,
        "n_rescored": n_rescored[len(n_rescored) // 2],
        "n_rescored_most": n_rescored[-1],
    }


def selection(w):
    """Rows of the selection alone."""
    bench = runner.bench_of(w)
    for n_rows, n, k in SELECTIONS:
        case = goals.SELECTION
        goal = None
        if (n_rows, n, k) == SELECTIONS[0]:
            goal = goals.GOALS[case](w.card)
        else:
            case = f"top-k itself, k = {k}, of {n_rows} × {n:_} scores".replace("_", " ")
        with world.reported(case, goal) as found:
            found.append(selection_row(w, bench, case, goal, (n_rows, n, k)))
        if w.on_gpu:
            torch.cuda.empty_cache()
        yield found


def selection_row(w, bench, case, goal, shape):
    """Our selection among random scores, torch.topk, and a read of the scores."""
    n_rows, n, k = shape
    n = w.size(n, 640)
    # Scores that a call would write; the call itself is made of few tokens and never measured.
    problem = data.Problem(cases.Case("selection", "", n_rows, 1, n, 1, dim=64), w.device)
    one = searches.Ours(bench, problem, k)
    scores = one.scores()
    if w.on_gpu:
        scores.normal_()
    one.top_k()
    searches.check_selection(one.read(), scores)
    methods = {"maxsim": one.top_k, "torch.topk": lambda: torch.topk(scores, one.k, dim=1)}
    reads = {}
    if w.on_gpu:
        matrix = bench.device.tokens("f32", scores.data_ptr(), 64, n_rows * n // 64, 1)
        for grid in ours.READ_GRIDS:
            reads[f"read {grid}"] = bench.device.read(one.one.call.stream, matrix, grid)
    times = w.device_ms(methods | reads)
    limit = min((world.figures({name: times.pop(name)})[name] for name in reads), default=None)
    one.free()
    return world.compared(case, goal, times, "ms", None, limit)
