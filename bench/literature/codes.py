"""INT8 codes over shapes and numbers of documents, and what they do to rankings (tables 13 and 14
of the Flash-MaxSim paper)."""

import compressed
import peers
import runner
import torch
from python import world

from . import methods
from .corpus import PAGE

#: Tokens of a query, documents, tokens of each.
SHAPES = ((32, 1000, 180), (32, 1000, 1024), (128, 1000, 1024), (512, 1000, 1024))
N_DOCS = (128, 256, 512, 1000, 2000, 5000, 10_000)
#: The best documents of a ranking.
TOP = 20


def codes(w):
    """A row for each shape, and for each number of pages."""
    shapes = SHAPES + tuple((PAGE, n, PAGE) for n in N_DOCS)
    bench = runner.bench_of(w)
    for query_len, n_docs, doc_len in shapes[: 2 if w.tiny else None]:
        words = f"INT8, one query of {query_len} × {n_docs} × {doc_len}"
        with world.reported(words, None) as found:
            found.append(coded(w, bench, words, query_len, n_docs, doc_len))
        yield found
        if w.on_gpu:
            torch.cuda.empty_cache()


def coded(w, bench, words, query_len, n_docs, doc_len):
    """The row of a shape."""
    made = compressed.Quantized
    problem = methods.problem_of(w, 1, query_len, n_docs, doc_len, made=made, format="int8")
    own = compressed.Stored(bench, problem)
    sample = problem.sample(world.SAMPLE, None)
    problem.check(bench, own.run, sample)
    plain = methods.ours(bench, problem)
    queries, documents = problem.query_codes, problem.document_codes
    decoded = lambda side: side.codes.half() * side.scales.half()[:, None]
    shaped = lambda side: decoded(side).view(*side.shape, problem.case.dim)
    others = {"PyTorch, decoded": lambda: peers.eager(shaped(queries), shaped(documents))}
    others |= peers.calls(problem)
    check = world.right_scores(problem, sample, {"maxsim": compressed.TOLERANCES["int8"]})
    good, bad = w.working({"maxsim": own.run} | others, check)
    world.must(good, bad)
    scores = {"INT8": own.run().clone(), "f16": plain.run().clone()}
    good["maxsim"] = own.call
    times = w.device_ms(good | {"maxsim, f16": plain.call})
    f16 = world.figures({"maxsim, f16": times.pop("maxsim, f16")})
    memory = methods.megabytes(w, good, own)
    found = world.compared(
        words,
        None,
        times,
        "ms",
        methods.plainly(bad),
        megabytes=memory,
        ours_ms=f16,
        **alike(*scores.values()),
    )
    own.free()
    plain.free()
    bench.device.free(*own.uploaded)
    return found


def alike(found, wanted):
    """How alike two rankings of the same documents are: Spearman's rank correlation of all, and the
    share of the best documents that is the same."""
    found, wanted = found.reshape(-1), wanted.reshape(-1)
    ranks = [scores.argsort().argsort().double() for scores in (found, wanted)]
    top = min(TOP, len(found))
    best = [set(scores.topk(top).indices.tolist()) for scores in (found, wanted)]
    return {
        "spearman": float(torch.corrcoef(torch.stack(ranks))[0, 1]),
        "top_20": len(best[0] & best[1]) / top,
        "mean_relative_error": float(((found - wanted) / wanted).abs().mean()),
    }
