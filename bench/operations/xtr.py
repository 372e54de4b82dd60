"""The training score of XTR beside sentence-transformers', PyLate's and the plain sum of maxima.

Ours is a whole call, from Python until its scores are there, and so are the others in its row.
"""

import threading

import cases
import data
import ours
import runner
import torch
from python import packages, rows, world

from . import goals
from .weights import Plain

#: Similarities of a query token that count as retrieved.
K = 256
#: Share of peers' scores that may be off: similarities in half precision are retrieved otherwise
#: where they are close to the threshold.
SHARE_PEERS = 0.01


def reference(queries, documents, k):
    """Scores `[Nq, Nd]` by float64 of Lee et al. 2023, eq. 5, a query at a time."""
    flat, n = documents.reshape(-1, documents.shape[-1]).double(), documents.shape[0]
    found = []
    for query in queries.double():
        similarities = query @ flat.T
        bound = similarities.topk(min(k, flat.shape[0]), dim=1).values[:, -1:]
        maxima = similarities.view(len(query), n, -1).amax(2)
        kept = maxima >= bound
        found.append((maxima * kept).sum(0) / kept.sum(0).clamp_min(1))
    return torch.stack(found)


def check(scores, wanted, share=0.0):
    """Compares scores with those of float64: all but a share of them are right."""
    wanted = wanted.to(scores.device)
    if scores.shape != wanted.shape:
        raise ValueError(f"scores are {list(scores.shape)}, not {list(wanted.shape)}")
    errors = (scores.double() - wanted).abs() / wanted.abs().clamp_min(1e-2)
    # A similarity at the threshold may be on the other side of it in float64.
    off = ~(errors <= world.TOLERANCE_PEERS)
    if float(off.double().mean()) > share:
        raise ValueError(
            f"{int(off.sum())} of {off.numel()} scores are off, by up to {float(errors.max()):.2e} "
            "relative"
        )


def peers(queries, documents):
    """The frameworks' scores of every query and document, and the normaliser of each."""
    own = documents.view(queries.shape[0], -1, *documents.shape[1:])
    found = {}

    def sentence_transformers():
        scoring = packages.importlib.import_module(
            "sentence_transformers.multi_vector_encoder.scoring"
        )
        return scoring.xtr_scores(queries, own, top_k=K)

    def pylate():
        scores = packages.importlib.import_module("pylate.scores")
        valid = torch.ones(own.shape[:-1], dtype=torch.bool, device=own.device)
        query_valid = torch.ones(queries.shape[:-1], dtype=torch.bool, device=own.device)
        return scores.XTRScores(k=K)(queries, own, query_valid, valid)

    found["sentence-transformers"] = sentence_transformers
    found["PyLate"] = pylate
    return found


def megabytes(w, call, n=5):
    """Device memory that calls hold at most beyond what is held before, asked of the driver by a
    thread again and again meanwhile: what is held for a moment alone may be missed."""
    if not w.on_gpu:
        call()
        return 0.0
    w.timer.synchronize()
    free, is_done = [torch.cuda.mem_get_info()[0]], threading.Event()

    def look():
        while not is_done.is_set():
            free.append(torch.cuda.mem_get_info()[0])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(n):
            call()
    finally:
        is_done.set()
        thread.join()
    return (free[0] - min(free)) / 1e6


def xtr(w):
    """The row of XTR's training score."""
    goal = goals.GOALS[goals.XTR](w.card)
    with world.reported(goals.XTR, goal) as found:
        bench = runner.bench_of(w)
        case = cases.Case("xtr", "", 64, 32, 64 * 8, 180)
        case = w.small(case)
        if w.tiny:
            case = cases.Case("xtr", "", 2, case.query_len, 4, case.doc_len, dim=case.dim)
        problem = data.Problem(case, w.device)
        plain = Plain(bench, problem)
        handle = ours.Whole(bench.device, "xtr", *plain.handles, K)
        mb = megabytes(w, handle)
        scores = torch.empty(case.n_queries, case.n_docs)
        handle.read(scores.data_ptr())
        queries = problem.queries.view(case.n_queries, case.query_len, case.dim)
        documents = problem.documents.view(case.n_docs, case.doc_len, case.dim)
        wanted = reference(queries, documents, K)
        check(scores, wanted)
        methods, bad = w.working(
            peers(queries, documents), lambda _, found: check(found, wanted, SHARE_PEERS)
        )
        methods = {"maxsim": handle, "plain": plain.call} | methods
        times = w.whole_ms(methods)
        middle = world.figures(times)
        eager = middle.get("sentence-transformers")
        others = {name: ms for name, ms in middle.items() if name not in ("maxsim", "plain")}
        found.append(
            rows.row(
                goals.XTR, goal, middle["maxsim"], "ms", others | bad,
                x_sentence_transformers=rows.ratio(eager, middle["maxsim"]),
                x_plain=rows.ratio(middle["maxsim"], middle["plain"]), plain=middle["plain"],
                megabytes=mb, quartiles=world.spreads(times),
            )  # fmt: skip
        )
        handle.free()
        plain.free()
    yield found
