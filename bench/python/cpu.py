"""Scoring on a CPU by PyLate's and sentence-transformers' own functions, with equal threads."""

import ctypes
import pathlib
import statistics

import torch

from . import packages, rows, world
from .world import must, reported

GOAL = rows.Goal(
    "≥ 2 × their einsum, peak ≤ 1/10",
    (("x_best_peer", ">=", 2.0), ("peak_of_theirs", "<=", 0.1)),
)
SHAPE = (32, 1000, 300, 128)
TOLERANCE = 1e-5


def high_water_bytes(begin=False):
    """The most memory that this process had since it was last asked to begin."""
    if begin:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    status = dict(
        line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines()
    )
    return int(status["VmHWM"].split()[0]) * 1024


def peak_mb(call):
    """Memory that a call takes at its peak, beyond what the process has before."""
    libc, found = ctypes.CDLL(None), []
    for _ in range(5):
        # What earlier calls left in the heap would hide what this one takes of it.
        libc.malloc_trim(0)
        before = high_water_bytes(begin=True)
        result = call()
        found.append((high_water_bytes() - before) / 1e6)
        del result
    return max(statistics.median(found), 0.004)


def scorers():
    """{words: (function of queries and documents, integration)} of both frameworks."""
    found = {}
    try:
        packages.losses_of_pylate()
        from maxsim.integrations import pylate
        from pylate.scores import colbert

        # By the module's name: a name taken before would stay the framework's.
        found["PyLate"] = (lambda q, d: colbert.colbert_scores(q, d), pylate)
    except ImportError as error:
        found["PyLate"] = (error, None)
    try:
        from maxsim.integrations import sentence_transformers
        from sentence_transformers import util

        found["sentence-transformers"] = (lambda q, d: util.maxsim(q, d), sentence_transformers)
    except ImportError as error:
        found["sentence-transformers"] = (error, None)
    return found


def cpu(w):
    """Rows of both frameworks."""
    query_len, n, doc_len, dim = SHAPE
    n = w.size(n, 20)
    generator = torch.Generator().manual_seed(1)
    q, d = (
        torch.nn.functional.normalize(torch.randn(*shape, generator=generator), dim=-1)
        for shape in ((1, query_len, dim), (n, doc_len, dim))
    )
    expected = reference(q, d)
    for words, (function, integration) in scorers().items():
        case = f"CPU: {words} scoring of 32 × 1000 × 300 f32, equal threads"
        with reported(case, GOAL) as found:
            if isinstance(function, Exception):
                raise function
            found.append(cpu_row(w, case, lambda: function(q, d), integration, expected))
        yield found


def reference(q, d):
    """Float64 scores, document by document."""
    return torch.stack([(q[0].double() @ x.double().T).amax(1).sum() for x in d])[None]


def cpu_row(w, case, call, integration, expected):
    """The framework's function with this package enabled and without, in turns."""
    def ours():
        with integration.enable(check_version=False):
            return call()

    def check(name, scores):
        error = float(((scores.double() - expected) / expected).abs().max())
        if not error <= TOLERANCE:
            raise ValueError(f"scores are off by {error:.2e} relative")

    good, bad = w.working({"maxsim": ours, "its einsum": call}, check)
    must(good, bad)
    peaks = {name: peak_mb(call) for name, call in good.items()}
    timer = world.timing.Cpu()

    def once(method):
        if method is ours:
            # Enabled around the call, not in it.
            with integration.enable(check_version=False):
                return timer.call_ms(call)
        return timer.call_ms(method)

    times = w.turns(good, once, max(w.seconds, 4.0 if not w.tiny else 0.0), least=9, most=200)
    ratios = [b / a for a, b in zip(times["maxsim"], times["its einsum"])]
    theirs = peaks.get("its einsum")
    return world.compared(
        case,
        GOAL,
        times,
        "ms",
        bad,
        threads=torch.get_num_threads(),
        x_of_turns=world.figures({"x": ratios})["x"],
        peak_mb=peaks["maxsim"],
        peers_peak_mb=theirs,
        peak_of_theirs=rows.ratio(peaks["maxsim"], theirs),
    )
