"""Angular scores and their gradients, beside those of normalised rows and of rows as they are."""

import copy

import torch
from python import world

from . import goals, weights

#: Options of the calls that are compared, by their names in the record.
CALLS = {"plain": "", "normalized": "normalize=1", "angular": "angular=1"}


def check_scores(problem, scores):
    """Compares some documents' scores with float64's minus distances."""
    case = problem.case
    documents = torch.linspace(0, case.n_docs - 1, min(case.n_docs, world.SAMPLE)).long()
    queries = range(min(case.n_queries, world.SAMPLE))
    rows = torch.nn.functional.normalize
    directions = copy.copy(problem)
    directions.queries = rows(problem.queries.double(), dim=-1)
    directions.documents = rows(problem.documents.double(), dim=-1)
    terms = weights.maxima(directions, queries, documents) - 1
    found = scores.view(case.n_queries, case.n_docs)[: len(queries), documents].double()
    error = ((found - terms.sum(1)).abs() / terms.abs().sum(1)).max().item()
    if not error <= world.TOLERANCE:
        raise ValueError(f"scores are off by {error:.2e} of their terms' magnitudes")


def scores(w, bench, shape):
    """Times of the three calls."""
    problem = weights.problem_of(w, shape)
    calls = {name: weights.Plain(bench, problem, options) for name, options in CALLS.items()}
    check_scores(problem, calls["angular"].run())
    times = w.device_ms({name: call.call for name, call in calls.items()})
    for call in calls.values():
        call.free()
    return times


def gradients(w, bench, shape):
    """Times of their gradients; angular ones are those of normalised rows, as no row is zero."""
    problem = weights.problem_of(w, shape)
    case = problem.case
    g = torch.rand(case.n_queries, case.n_docs, device=w.device)
    calls, methods = {}, {}
    for name, options in CALLS.items():
        calls[name] = weights.Plain(bench, problem, f"{options},winners=1")
        methods[name] = calls[name].prepare_gradients(problem, g).backward
        methods[name]()
    w.timer.synchronize()
    for found, expected in zip(calls["angular"].grads, calls["normalized"].grads, strict=True):
        if not torch.equal(found, expected):
            raise ValueError("gradients differ from those of normalised rows")
    times = w.device_ms(methods)
    for call in calls.values():
        call.step.free()
        call.free()
    return times


def angular(w):
    """The row of angular scores, beside calls that normalise."""
    parts = {"scores": scores, "gradients": gradients}
    unit, methods = "× the call that normalises", ("angular", "normalized")
    yield from weights.row_of_shapes(w, goals.ANGULAR, unit, parts, methods)
