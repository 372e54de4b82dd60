"""The ways to score that the literature's tables compare: PyTorch's, and rows of all of them."""

import functools

import cases
import data
import peers
import runner
import timing
import torch
from python import world

#: Documents that are scored at a time in chunks; the best of these counts.
CHUNKS = (16, 64, 256, 1024, 4096, 16384)


def problem_of(w, n_queries, query_len, n_docs, doc_len, made=data.Problem, **more):
    """A problem of this shape, or of the smallest that is like it."""
    case = cases.Case("literature", "", n_queries, query_len, n_docs, doc_len, **more)
    return made(w.small(case), w.device)


def ours(bench, problem, options=""):
    """Our call, prepared."""
    return runner.Ours(bench, problem, cases.Variant(), options)


def best_chunk(w, queries, documents, most=10_000):
    """The number of documents at a time that is fastest, by the first documents."""
    part, times = documents[:most], {}
    for n in CHUNKS:
        if n > len(part) and times:
            break
        call = functools.partial(peers.chunked, queries, part, n)
        try:
            call()
            times[n] = min(w.timer.device_ms(call, timing.SLEEP_US_MIN, True) for _ in range(3))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
    return min(times, key=times.get)


class NotRun(Exception):
    """Why a method is left out of a row."""


def plainly(bad):
    """Why methods did not run, in few words where it is memory or known before."""
    found = {}
    for name, why in bad.items():
        kind, _, words = why.partition(": ")
        found[name] = {"OutOfMemoryError": "out of memory", "NotRun": words}.get(kind, why)
    return found


def megabytes(w, methods, own):
    """Memory of each method beyond its inputs, in MB."""
    found = {}
    for name, call in methods.items():
        n = own.device_bytes if name == "maxsim" else w.timer.peak_bytes(call)
        found[name] = round(n / 1e6, 2)
    return found


def scored(w, words, problem, own, others, unit="ms", least=7, with_memory=True, **more):
    """The row of ours and of others, {name: call or the error of making it}, whose results are
    scores of the problem."""
    sample = problem.sample(world.SAMPLE, data.DTYPES[problem.case.element])
    check = world.right_scores(problem, sample, {"maxsim": world.TOLERANCE})
    good, bad = w.working({"maxsim": own.run} | others, check)
    world.must(good, bad)
    good["maxsim"] = own.call
    if w.on_gpu:
        torch.cuda.empty_cache()
    if least < 7:
        once = lambda call: w.timer.device_ms(call, timing.SLEEP_US_MIN, True)
        times = w.turns(good, once, least=least)
    else:
        times = w.device_ms(good)
    if with_memory:
        more["megabytes"] = megabytes(w, good, own)
    return world.compared(words, None, times, unit, plainly(bad), **more)
