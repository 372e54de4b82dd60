"""Five shapes beside plain PyTorch in every precision and every mode of its compiler (tables 1, 4
and 21 of the Flash-MaxSim paper)."""

import cases
import peers
import runner
import torch
from python import world

from . import methods

N_DOCS = 1000


def matched(w):
    """A row for each shape."""
    bench = runner.bench_of(w)
    for query_len, doc_len in cases.BASELINE_SHAPES:
        words = f"one query of {query_len} × {N_DOCS} × {doc_len}"
        with world.reported(words, None) as found:
            found.append(shape(w, bench, words, query_len, doc_len))
        yield found
        torch.compiler.reset()


def shape(w, bench, words, query_len, doc_len):
    """The row of a shape."""
    problem = methods.problem_of(w, 1, query_len, N_DOCS, doc_len)
    queries, documents = problem.queries, problem.padded
    own = methods.ours(bench, problem)
    chunk = methods.best_chunk(w, queries, documents)
    whole = queries.float(), documents.float()
    others = {
        "PyTorch, f32": precise(False, *whole),
        "PyTorch, TF32": precise(True, *whole),
        "PyTorch, eager": lambda: peers.eager(queries, documents),
        "PyTorch, in chunks": lambda: peers.chunked(queries, documents, chunk),
        "PyTorch, compiled": peers.compiled(queries, documents),
        "PyTorch, max-autotune": peers.compiled(queries, documents, mode="max-autotune"),
        "PyTorch, max-autotune without graphs": peers.compiled(
            queries, documents, mode="max-autotune-no-cudagraphs"
        ),
    }
    if not w.on_gpu:
        others = {name: call for name, call in others.items() if "max-autotune" not in name}
    others |= peers.calls(problem)
    found = methods.scored(w, words, problem, own, others, chunk=chunk)
    own.free()
    return found


def precise(allowed, queries, documents):
    """In f32, with products in TF32 or not."""

    def call():
        torch.backends.cuda.matmul.allow_tf32 = allowed
        return peers.eager(queries, documents)

    return call
