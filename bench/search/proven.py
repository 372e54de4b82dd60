"""Searches by way of codes: proven ones, and recall beside time."""

import gc
import tempfile

import runner
import torch
from python import packages, rows, world

from . import goals, resident, searches, spread

FLASH_TWO_STAGE = "flash-maxsim two-stage top-k"
FAST_PLAID = "fast-plaid"
#: Queries whose recall is averaged.
N_RECALL = 50


class Collection:
    """Documents of a collection on the device, our calls, and queries in host memory."""

    def __init__(self, w, n_documents, doc_len, k, n_queries):
        self.limits = w.limits  # measured before memory is taken
        case = searches.shaped(w, 1, 32, n_documents, doc_len)
        drawn = spread.Spread(w.device, case.dim, case.n_docs)
        self.problem = problem = searches.Spread(case, w.device, drawn)
        queries = drawn.queries(problem.padded, n_queries, case.query_len)
        self.similarity = drawn.statistics(problem.padded, queries)
        self.host = queries.cpu()[:, None]
        self.one = searches.Ours(runner.bench_of(w), problem, k)
        if w.on_gpu:
            torch.cuda.empty_cache()  # what drawing took
        self.one.hold()
        gc.collect()

    def codes_bytes(self):
        """Bytes of codes and scales, which a scan reads."""
        return self.problem.n_rows * (self.problem.case.dim + 2)

    def about(self):
        """What a row says of the data."""
        return {"similarity": self.similarity, "similarity_of_the_real_set": spread.REAL}


def proven(w):
    """The row of a million documents."""
    goal = goals.GOALS[goals.PROVEN](w.card)
    with world.reported(goals.PROVEN, goal) as found:
        found.append(proven_row(w, goal))
    yield found


def proven_row(w, goal):
    """Searches by way of codes beside those of all scores, all whole."""
    c = Collection(w, 1_000_000, 100, 10, resident.SETS)
    one, rank, search = c.one, c.one.rank(c.host), c.one.search(c.host)
    more = resident.compare(len(c.host), rank, search) | c.about()
    good, bad = peers_of(w, c)
    own = {"maxsim": search, "f16 scan": rank, "not exact": one.search(c.host, exact=False)}
    whole = {name: searches.from_host(c.problem, c.host, best) for name, best in good.items()}
    times = w.whole_ms(resident.in_turn(own | whole))
    middle = world.figures(times)
    beside = world.figures({name: times.pop(name) for name in ("f16 scan", "not exact")})
    limit = c.limits.device_ms(c.codes_bytes(), 0, "f16")
    one.free()
    return world.compared(
        goals.PROVEN,
        goal,
        times,
        "ms",
        bad,
        limit,
        f16_scan_ms=beside["f16 scan"],
        not_exact_ms=beside["not exact"],
        x_f16_scan=rows.ratio(middle["maxsim"], beside["f16 scan"]),
        **more,
    )


def peers_of(w, c):
    """The peers' searches of all scores that work, and why others do not."""
    c.problem.queries.copy_(c.host[0])
    scores = c.one.scores()
    check = searches.check_best(scores, torch.topk(scores, c.one.k, dim=1).values)
    return w.working(searches.others(c.problem, c.one.k), check)


def recall(w):
    """The row of exact and approximate searches."""
    with world.reported(goals.RECALL, None) as found, tempfile.TemporaryDirectory() as folder:
        found.append(recall_row(w, folder))
    yield found


def recall_row(w, folder):
    """Whole searches beside the share of the exact best that they find."""
    c = Collection(w, 100_000, 100, 10, N_RECALL)
    own = {
        "maxsim": c.one.search(c.host),
        "maxsim, INT8, 100 candidates": c.one.search(c.host, exact=False),
        "maxsim, f16 scan": c.one.rank(c.host),
    }
    good, bad = peers_of(w, c)
    others = {name: searches.from_host(c.problem, c.host, best) for name, best in good.items()}
    makers = {FLASH_TWO_STAGE: two_stage, FAST_PLAID: lambda c: fast_plaid(w, c, folder)}
    for name, make in makers.items():
        try:
            call = make(c)
            call(0)
            others[name] = call
        except Exception as error:
            bad[name] = world.timing.said(error)
    exact = own["maxsim, f16 scan"]
    best = [exact(i).ids[0].tolist() for i in range(len(c.host))]
    recalls = {name: recall_of(call, best) for name, call in (own | others).items()}
    times = w.whole_ms(resident.in_turn(own | others))
    del own["maxsim"]
    beside = world.figures({name: times.pop(name) for name in own})
    limit = c.limits.device_ms(c.codes_bytes(), 0, "f16")
    c.one.free()
    return world.compared(
        goals.RECALL, None, times, "ms", bad, limit, ours_ms=beside, recall=recalls, **c.about()
    )


def recall_of(call, best):
    """Mean share of the best documents of each query that a search finds."""
    shares = []
    for i, wanted in enumerate(best):
        found = call(i)
        ids = found.ids if hasattr(found, "ids") else found[1]
        shares.append(len(set(wanted) & set(ids.reshape(-1).tolist())) / len(wanted))
    return sum(shares) / len(shares)


def two_stage(c):
    """flash-maxsim's scan of codes that it has made before, whose best candidates it re-scores."""
    flash = packages.original("flash_maxsim")
    documents = c.problem.padded
    codes, scales, mins = flash.quantize_int8(documents)

    def best():
        queries = c.problem.queries[0]
        return flash.flash_maxsim_topk(
            queries, documents, c.one.k, D_int8=codes, scales=scales, mins=mins
        )

    return searches.from_host(c.problem, c.host, best)


def fast_plaid(w, c, folder):
    """fast-plaid's search of an index with its defaults."""
    from fast_plaid import search

    index = search.FastPlaid(index=folder, device="cuda:0" if w.on_gpu else "cpu")
    # Of one tensor it takes a sample with an axis more than its clustering has.
    index.create(documents_embeddings=list(c.problem.padded.float().cpu()))

    def call(i=0):
        queries = c.host[i % len(c.host)].float()
        best = index.search(queries_embeddings=queries, top_k=c.one.k, show_progress=False)[0]
        ids, scores = zip(*best)
        return torch.tensor([scores]), torch.tensor([ids])

    return call
