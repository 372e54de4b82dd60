"""What a process measures with: its device, its timer, turns, floors, checks."""

import contextlib
import dataclasses
import gc
import os
import platform
import statistics
import time

import cases
import data
import timing
import torch

from . import limits, packages, rows

#: Relative errors that a right answer has: see bench/runner.py.
TOLERANCE, TOLERANCE_TF32, TOLERANCE_PEERS = 1e-5, 1e-2, 2e-2
SAMPLE = 24
#: Cosines of gradients with the reference's, at least.
COSINE, COSINE_PEERS = 0.999999, 0.999
#: Calls that are enqueued before the device is waited for.
ENQUEUED = 100


class World:
    """A process on its device. `args.tiny`: the smallest shapes, to try the scripts anywhere."""

    def __init__(self, args):
        self.args, self.tiny = args, args.tiny
        self.device, self.on_gpu = args.device, args.device == "cuda"
        self.timer = timing.Cuda(torch) if self.on_gpu else timing.Cpu()
        self.seconds = args.seconds
        self.known_limits = None
        packages.use(args.peers)
        torch.manual_seed(0)

    @property
    def card(self):
        """What the rows are measured on."""
        if self.on_gpu:
            return torch.cuda.get_device_name()
        return f"CPU, {platform.machine()}, {os.cpu_count()} cores"

    @property
    def limits(self):
        """Floors of the card, measured when they are first asked for."""
        if self.known_limits is None:
            self.known_limits = limits.Limits(torch, self.timer, self.on_gpu)
        return self.known_limits

    def case(self, name):
        """A case of the forward campaign, or the smallest that is like it."""
        return self.small(cases.BY_NAME[name])

    def small(self, case):
        """The case, or the smallest that is like it where the scripts are only tried."""
        if not self.tiny:
            return case
        most = {"n_queries": 3, "n_docs": 4, "query_len": 8, "doc_len": 40, "dim": 32}
        sizes = {name: min(getattr(case, name), size) for name, size in most.items()}
        return dataclasses.replace(case, **sizes)

    def size(self, n, smallest=4):
        """A size, or the smallest that will do where the scripts are only tried."""
        return min(n, smallest) if self.tiny else n

    def problem(self, case):
        """The tensors of a case; lengths fit it."""
        problem = data.Problem(case, self.device)
        return problem

    def turns(self, methods, once, seconds=None, least=7, most=400):
        """Times of methods {name: call} in turns by `once(call)`: {name: [time]}."""
        seconds = self.seconds if seconds is None else seconds
        times, names = {name: [] for name in methods}, list(methods)
        gc.collect()
        gc.disable()
        try:
            start = time.perf_counter()
            for i in range(most if names else 0):
                for name in names[i % len(names) :] + names[: i % len(names)]:
                    times[name].append(once(methods[name]))
                spent = time.perf_counter() - start
                if i + 1 >= least and spent * (i + 2) / (i + 1) > seconds:
                    break
        finally:
            gc.enable()
        return times

    def whole_ms(self, methods, seconds=None):
        """Times of whole calls, caches cold."""
        return self.turns(methods, self.timer.call_ms, seconds)

    def enqueue_us(self, methods, seconds=None, n=ENQUEUED):
        """Host times of calls that are not waited for, each the mean of n."""
        n = 2 if self.tiny else n
        for call in methods.values():
            self.timer.enqueue_us(call, n)
        return self.turns(methods, lambda call: self.timer.enqueue_us(call, n), seconds, most=60)

    def device_ms(self, methods, seconds=None):
        """Device times of calls, caches cold."""
        sleeps = {}
        for call in methods.values():
            call()
            self.timer.synchronize()
            sleeps[call] = max(timing.SLEEP_US_MIN, 2 * self.timer.enqueue_us(call, 2))
        return self.turns(
            methods, lambda call: self.timer.device_ms(call, sleeps[call], True), seconds, most=200
        )

    def working(self, methods, check=None):
        """The methods whose first call succeeds and is right, and why the others are none."""
        good, bad = {}, {}
        for name, call in methods.items():
            try:
                if isinstance(call, Exception):
                    raise call
                result = call()
                self.timer.synchronize()
                if check is not None:
                    check(name, result)
                good[name] = call
            except Exception as error:
                bad[name] = timing.said(error)
                if self.on_gpu:
                    torch.cuda.empty_cache()
        return good, bad


def figures(times):
    """Medians by name."""
    return {name: statistics.median(values) for name, values in times.items()}


def spreads(times):
    """First and third quartile by name, in the digits that mean something."""
    found = {}
    for name, values in times.items():
        quarters = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
        found[name] = [rows.rounded(quarters[0]), rows.rounded(quarters[2])]
    return found


def compared(case, goal, times, unit, bad=None, limit=None, **more):
    """The row of times in turns of ours, "maxsim", and others; `bad`: why some have none."""
    middle = figures(times)
    ours = middle.pop("maxsim")
    others = middle | (bad or {})
    n = len(times["maxsim"])
    return rows.row(
        case, goal, ours, unit, others, limit, quartiles=spreads(times), n=n, **more
    )


def right_scores(problem, sample, tolerances):
    """A check of scores by name against float64 of a sample of documents."""

    def check(name, scores):
        bound = tolerances.get(name, TOLERANCE_PEERS)
        error = problem.largest_error(scores, sample)
        if not error <= bound:
            raise ValueError(f"scores are off by {error:.2e} relative")

    return check


def cosine(found, expected):
    """Cosine of two tensors in float64."""
    a, b = (x.detach().double().reshape(1, -1) for x in (found, expected))
    return float(torch.nn.functional.cosine_similarity(a, b))


def must(good, bad):
    """Ours must be among what works: nothing is compared with nothing."""
    if "maxsim" not in good:
        raise ValueError(bad["maxsim"])


@contextlib.contextmanager
def reported(case, goal):
    """Collects the rows of a case; an error becomes the row that says it."""
    found = []
    try:
        yield found
    except Exception as error:
        found[:] = [rows.failed(case, goal, timing.said(error))]
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
