"""Time and memory against the number of documents, until memory ends (figure 1, tables 2, 5, 6
and 23 of the Flash-MaxSim paper)."""

import gc

import peers
import runner
import torch
from python import world

from . import methods

#: Numbers of pages, of 1024 tokens each; the query is one, too.
N_DOCS = (1000, 5000, 10_000, 15_000, 20_000, 50_000, 150_000, 300_000, 450_000)
PAGE, PAGE_BYTES = 1024, 1024 * 128 * 2
#: Share of the device's memory that documents may take.
SHARE = 0.85
LATE_INTERACTION = "late-interaction-kernels"
BEYOND_32 = "not run: its kernel addresses elements with 32 bits"
#: From so many on, few rounds: some methods take seconds.
MANY = 50_000


def corpus(w):
    """A row for each number of documents that the device holds."""
    bench, chunk = runner.bench_of(w), None
    for n in N_DOCS[: 2 if w.tiny else None]:
        if w.on_gpu and n * PAGE_BYTES > SHARE * torch.cuda.mem_get_info()[1]:
            continue
        words = f"one query of 1024 × {n} × 1024"
        with world.reported(words, None) as found:
            found.append(point(w, bench, words, n, chunk))
            chunk = found[0]["chunk"]
        yield found
        # What is compiled keeps its inputs, and cycles keep others.
        torch.compiler.reset()
        gc.collect()
        if w.on_gpu:
            torch.cuda.empty_cache()


def point(w, bench, words, n, chunk):
    """The row of n documents, in chunks of so many, or of as many as is fastest."""
    problem = methods.problem_of(w, 1, PAGE, n, PAGE)
    queries, documents = problem.queries, problem.padded
    if chunk is None or n < MANY:
        chunk = methods.best_chunk(w, queries, documents)
    own = methods.ours(bench, problem)
    others = {
        "PyTorch, eager": lambda: peers.eager(queries, documents),
        "PyTorch, in chunks": lambda: peers.chunked(queries, documents, chunk),
        "PyTorch, compiled": peers.compiled(queries, documents),
    }
    others |= peers.calls(problem)
    if peers.chunk_of(problem) and LATE_INTERACTION in others:
        others[LATE_INTERACTION] = methods.NotRun(BEYOND_32)
    least = 3 if n >= MANY else 7
    found = methods.scored(w, words, problem, own, others, least=least, chunk=chunk)
    own.free()
    return found
