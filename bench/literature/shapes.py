"""Scores of more shapes than the forward campaign has: queries served at once, documents of
different lengths, rows that are normalised, long queries, further dims (tables 8, 12, 15 and 16 of
the Flash-MaxSim paper)."""

import functools

import data
import peers
import runner
import torch
from python import world

from . import methods

#: Tokens of a query, documents, tokens of each: passages, long documents, pages.
SERVED = ((32, 1024, 180), (32, 1024, 1024), (1024, 128, 1024))
N_QUERIES = (1, 4, 8, 16, 32)
LENGTHS = ("uniform", "log-normal", "exponential")
NORMALIZED = ((1, 32, 1000, 300), (1, 32, 10_000, 300), (1, 1024, 1000, 1024), (32, 32, 1024, 180))
LONG = (512, 1024, 2048, 4096)
DIMS = (48, 384)


def rows(w, shapes, words, make):
    """A row for each shape."""
    bench = runner.bench_of(w)
    for shape in shapes:
        with world.reported(words(*shape), None) as found:
            found.append(make(w, bench, words(*shape), *shape))
        yield found
        if w.on_gpu:
            torch.cuda.empty_cache()


def words_of(n_queries, query_len, n_docs, doc_len):
    """A shape in words."""
    queries = "one query" if n_queries == 1 else f"{n_queries} queries"
    return f"{queries} of {query_len} × {n_docs} × {doc_len}"


def eager(problem):
    """PyTorch's eager call."""
    return functools.partial(peers.eager, problem.queries, problem.padded)


def beside_peers(w, bench, words, problem, **more):
    """The row of a problem beside eager PyTorch and the peers."""
    own = methods.ours(bench, problem)
    others = {"PyTorch, eager": eager(problem)} | peers.calls(problem)
    found = methods.scored(w, words, problem, own, others, **more)
    own.free()
    return found


def serving(w):
    """Several queries at once, in queries a second."""

    def make(w, bench, words, n_queries, query_len, n_docs, doc_len):
        problem = methods.problem_of(w, n_queries, query_len, n_docs, doc_len)
        found = beside_peers(w, bench, words, problem)
        n = problem.case.n_queries
        found["queries_per_s"] = world.rows.rounded(n / found["ours"] * 1e3)
        return found

    shapes = [(n, *shape) for shape in SERVED for n in N_QUERIES]
    yield from rows(w, shapes, words_of, make)


def ragged(w):
    """Documents of different lengths, and the same padded."""

    def make(w, bench, words, lengths):
        more = {"kind": "ragged", "lengths": lengths}
        problem = methods.problem_of(w, 1, 32, 1000, 512, **more)
        own = methods.ours(bench, problem)
        padded = peers.pad(problem)
        valid = torch.arange(padded.shape[1])[None] < problem.lengths[:, None]
        invalid = ~valid.to(w.device)[None, :, None]

        def eager():
            found = torch.einsum("qsd,ntd->qnst", problem.queries, padded)
            return found.masked_fill(invalid, -torch.inf).amax(3).float().sum(2)

        others = {"PyTorch, padded": eager} | peers.calls(problem)
        found = methods.scored(w, words, problem, own, others)
        own.free()
        return found

    shapes = [(lengths,) for lengths in LENGTHS]
    yield from rows(w, shapes, "one query of 32 × 1000, lengths {}".format, make)


class Unnormalized(data.Problem):
    """Documents whose rows have lengths from a half to two, which a call divides by."""

    def draw_documents(self, dtype):
        super().draw_documents(dtype)
        lengths = torch.rand(self.n_rows, 1, device=self.device) * 1.5 + 0.5
        self.documents = (self.documents.float() * lengths).to(dtype)

    def exact_rows(self, item, dtype):
        return torch.nn.functional.normalize(super().exact_rows(item, dtype), dim=1)

    def exact_queries(self, dtype):
        return torch.nn.functional.normalize(super().exact_queries(dtype), dim=2)


def normalize(w):
    """Rows that are divided by their lengths in the call, as late-interaction-kernels does."""

    def make(w, bench, words, *shape):
        problem = methods.problem_of(w, *shape, made=Unnormalized)
        own = methods.ours(bench, problem, "normalize=1")
        queries, documents = problem.queries, problem.padded
        unit = functools.partial(torch.nn.functional.normalize, dim=-1)
        others = {"PyTorch, eager": lambda: peers.eager(unit(queries), unit(documents))}
        others |= normalized_peers(problem, unit)
        plain = methods.ours(bench, problem)
        found = methods.scored(w, words, problem, own, others)
        found["ours_ms"] = world.rows.rounded(
            world.figures(w.device_ms({"maxsim, not normalised": plain.call}))
        )
        own.free()
        plain.free()
        return found

    words = lambda *shape: f"{words_of(*shape)}, normalised"
    yield from rows(w, NORMALIZED, words, make)


def normalized_peers(problem, unit):
    """late-interaction-kernels' own option, and flash-maxsim of rows that PyTorch normalised."""
    queries, documents, found = problem.queries, problem.padded, {}
    try:
        from late_interaction_kernels import maxsim

        name = "late-interaction-kernels"
        found[name] = lambda: maxsim(queries, documents, normalize=True)
    except ImportError as error:
        found["late-interaction-kernels"] = error
    try:
        import flash_maxsim

        if len(queries) == 1:
            call = lambda: flash_maxsim.flash_maxsim(unit(queries)[0], unit(documents))
        else:
            call = lambda: flash_maxsim.flash_maxsim_batched(
                unit(queries), unit(documents), shared_docs=True
            )
        found["flash-maxsim after normalize"] = call
    except ImportError as error:
        found["flash-maxsim after normalize"] = error
    return found


def long_queries(w):
    """Queries that other kernels cut into pieces above 512 tokens."""

    def make(w, bench, words, query_len):
        return beside_peers(w, bench, words, methods.problem_of(w, 1, query_len, 1000, 1024))

    yield from rows(w, [(n,) for n in LONG], "one query of {} × 1000 × 1024".format, make)


def dims(w):
    """Dims that the forward campaign has not."""

    def make(w, bench, words, dim):
        problem = methods.problem_of(w, 1, 1024, 128, 1024, dim=dim)
        return beside_peers(w, bench, words, problem)

    yield from rows(w, [(n,) for n in DIMS], "one query of 1024 × 128 × 1024, dim {}".format, make)
