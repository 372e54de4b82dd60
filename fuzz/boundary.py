#!/usr/bin/env python3
"""Gives the Python package arguments that no program has, and checks what comes of them.

    boundary.py [--calls 100000] [--seed 0]
    boundary.py --calls 1000000 --record FILE

Every call ends with a result of the right shape, equal to NumPy's where the arguments are right, or
with one of Python's own errors and words; anything else is a finding: another kind of error (a
panic of Rust's), an error without words, a wrong number, a crash. A call that crashes is found by
its seed, which is printed before the process ends. NumPy arrays on the CPU alone. The second form
goes on until there have been so many calls in all runs together, with seeds that none has had, and
adds them up in the record.
"""

import argparse
import collections
import faulthandler
import resource
import sys
import time

import numpy

import maxsim
import record

#: Calls between two records.
SLICE = 50_000

#: Errors that say what is wrong with arguments.
EXPECTED = (TypeError, ValueError, OverflowError, MemoryError, NotImplementedError, ImportError)

ELEMENTS = (numpy.float32, numpy.float16, numpy.float32)
OTHERS = (numpy.float64, numpy.int8, numpy.uint8, numpy.int64, numpy.complex64, bool, object)
INDICES = (numpy.int64, numpy.int32, numpy.uint8, numpy.uint64, numpy.float32, object)


class Source:
    """Arguments, drawn from a seed: mostly right ones, so that calls get far before they fail."""

    def __init__(self, seed):
        self.random = numpy.random.default_rng(seed)

    def one_in(self, n):
        return self.random.integers(n) == 0

    def any_of(self, choices):
        return choices[self.random.integers(len(choices))]

    def size(self, usual):
        if self.one_in(40):
            return int(self.any_of((0, 1, 2, 7, 33, 255)))
        return usual

    def array(self, *shape):
        """Elements, in whatever memory order and type."""
        shape = [self.size(n) for n in shape]
        if self.one_in(60):
            shape = shape[: self.random.integers(len(shape) + 1)]
        if self.one_in(60):
            shape.insert(int(self.random.integers(len(shape) + 1)), 2)
        values = self.random.standard_normal(shape).astype(numpy.float32)
        values = values.astype(self.any_of(OTHERS if self.one_in(30) else ELEMENTS))
        if values.size and values.dtype.kind == "f" and self.one_in(10):
            places = self.random.integers(values.size, size=2)
            values.reshape(-1)[places] = self.any_of((numpy.nan, numpy.inf, -numpy.inf, 0, 65504))
        return self.seen(values)

    def seen(self, values):
        """The same values in other memory."""
        if values.ndim == 0 or not self.one_in(6):
            return values
        axis = int(self.random.integers(values.ndim))
        match self.random.integers(6):
            case 0:
                return numpy.flip(values, axis)
            case 1:
                return numpy.asfortranarray(values)
            case 2:
                every_other = (slice(None),) * axis + (slice(None, None, 2),)
                return numpy.repeat(values, 2, axis=axis)[every_other]
            case 3:
                return values.astype(values.dtype.newbyteorder(">"))
            case 4:
                values.flags.writeable = False
                return values
            case _:
                return numpy.broadcast_to(values[:1], values.shape) if values.shape[0] else values

    def integers(self, low, high, *shape):
        """Whole numbers from low to high, or some that are far from that."""
        shape = [self.size(n) for n in shape]
        if self.one_in(25):
            low, high = self.any_of(((-5, 50), (-(2**62), 2**62), (2**31 - 2, 2**31 + 2)))
        values = self.random.integers(low, max(high, low) + 1, size=shape)
        wanted = self.any_of(INDICES if self.one_in(15) else INDICES[:2])
        with numpy.errstate(all="ignore"):
            values = values.astype(wanted)
        if self.one_in(2):
            return self.seen(values)
        return values.tolist() if self.one_in(4) else values

    def beside(self, n, length):
        """Lengths or a mask of items, or neither."""
        match self.random.integers(5):
            case 0:
                return {"lengths": self.integers(0, length, n)}
            case 1:
                mask = self.random.integers(0, 2, size=(n, length)).astype(bool)
                return {"mask": self.seen(mask)}
            case 2 if self.one_in(10):
                return {"lengths": self.integers(0, length, n), "mask": self.array(n, length)}
            case _:
                return {}

    def flags(self, *names):
        found = {name: True for name in names if self.one_in(5)}
        if self.one_in(80):
            others = (None, "yes", 2, numpy.bool_(True), numpy.zeros(2))
            found[self.any_of(names)] = self.any_of(others)
        return found


def oracle(queries, documents, q, d):
    """Scores in float64 of padded sides, with lengths or masks; NaN where any number is none."""

    def valid(side, beside):
        n, length = side.shape[:2]
        found = numpy.ones((n, length), bool)
        if "mask" in beside:
            found &= numpy.asarray(beside["mask"]).astype(bool)
        if "lengths" in beside:
            found &= numpy.arange(length)[None, :] < numpy.asarray(beside["lengths"])[:, None]
        return found

    masks = valid(queries, q), valid(documents, d)
    with numpy.errstate(all="ignore"):
        similar = numpy.einsum("qsk,dtk->qdst", queries.astype(float), documents.astype(float))
    similar = numpy.where(masks[1][None, :, None, :], similar, -numpy.inf)
    best = similar.max(axis=3, initial=-numpy.inf)
    best = numpy.where(masks[1].any(axis=1)[None, :, None] & masks[0][:, None, :], best, 0)
    return best.sum(axis=2)


def check_padded(source):
    n, d, length, other, dim = (source.any_of(range(1, 6)) for _ in range(5))
    queries, documents = source.array(n, length, dim), source.array(d, other, dim)
    q, of = source.beside(n, length), source.beside(d, other)
    options = source.flags("winners", "token_scores", "normalize", "mean", "tf32", "consistent")
    sides = {f"q_{key}": value for key, value in q.items()}
    sides |= {f"d_{key}": value for key, value in of.items()}
    found = maxsim.maxsim(queries, documents, **sides, **options)
    scores = found.scores if hasattr(found, "scores") else found
    if queries.ndim == documents.ndim == 3 and not options:
        assert scores.shape == (len(queries), len(documents)), scores.shape
        wanted = oracle(queries, documents, q, of)
        if numpy.isfinite(wanted).all() and numpy.isfinite(scores).all():
            # Rows that are no tokens may hold anything.
            finite = [
                numpy.nan_to_num(x.astype(float), posinf=0, neginf=0)
                for x in (queries, documents)
            ]
            most = [1 + numpy.abs(x).max(initial=0) for x in finite]
            # The wider of two types is rounded to the narrower.
            tolerance = 1e-4 if queries.dtype == documents.dtype else 4e-3
            error = numpy.abs(scores - wanted).max(initial=0)
            assert error <= tolerance * most[0] * most[1] * dim * length, (scores, wanted)


def check_pairs(source):
    n, length, dim = (source.any_of(range(1, 6)) for _ in range(3))
    queries, documents = source.array(n, length, dim), source.array(n, length, dim)
    ids = {}
    if source.one_in(2):
        ids = {"q_ids": source.integers(0, n - 1, 7), "d_ids": source.integers(0, n - 1, 7)}
    maxsim.pairs(queries, documents, **ids, **source.flags("winners", "normalize", "mean"))


def check_candidates(source):
    n, d, k, length, dim = (source.any_of(range(1, 5)) for _ in range(5))
    queries = source.array(n, length, dim)
    if source.one_in(2):
        maxsim.candidates(queries, source.array(n, k, length, dim), **source.flags("winners"))
    else:
        ids = source.integers(0, d - 1, n, k)
        maxsim.candidates(queries, source.array(d, length, dim), ids, **source.flags("winners"))


def offsets(source, n, rows):
    values = numpy.sort(source.random.integers(0, rows + 1, size=n + 1))
    values[0], values[-1] = 0, rows
    return source.integers(0, rows, n + 1) if source.one_in(20) else values


def check_packed(source):
    dim, rows, others = (source.any_of(range(1, 9)) for _ in range(3))
    queries, documents = source.array(rows, dim), source.array(others, dim)
    starts = offsets(source, 2, rows), offsets(source, 3, others)
    options = source.flags("winners", "token_scores", "normalize")
    if source.one_in(8):
        options["max_q_len"] = source.any_of((-1, 0, 1, 5, 2**40, None, "5"))
    maxsim.packed(queries, documents, *starts, **options)


def check_scattered(source):
    dim, rows = (source.any_of(range(1, 9)) for _ in range(2))
    places = [source.integers(0, rows - 1, 3), source.integers(0, 1, 3)] * 2
    maxsim.scattered(source.array(rows, dim), source.array(rows, dim), *places)


def check_codes(source):
    rows, dim = source.any_of(range(1, 7)), source.any_of(range(1, 9))
    kind = source.any_of(("int8", "int8-affine", "fp8", "int4", "", None, 8))
    codes = maxsim.quantize(source.array(rows, 3, dim), kind, **source.beside(rows, 3))
    maxsim.dequantize(codes)
    if source.one_in(2):
        maxsim.maxsim(codes, codes)


def check_ranking(source):
    n, d, length, dim = (source.any_of(range(1, 6)) for _ in range(4))
    k = source.any_of((0, -1, 2**63, 2.5, None) if source.one_in(10) else (1, 3, 10))
    found = maxsim.topk(source.array(n, length, dim), source.array(d, length, dim), k)
    if isinstance(k, int):
        assert len(found) > 0


KINDS = (
    check_padded, check_padded, check_pairs, check_candidates, check_packed, check_scattered,
    check_codes, check_ranking,
)  # fmt: skip


def call(seed):
    """One call: what came of it, by name."""
    source = Source(seed)
    kind = source.any_of(KINDS)
    try:
        kind(source)
    except EXPECTED as error:
        if not str(error).strip():
            raise AssertionError(f"{type(error).__name__} without words") from error
        return f"{kind.__name__}: {type(error).__name__}"
    return f"{kind.__name__}: a result"


def calls_of(seeds):
    """Makes the calls of these seeds; what came of them, and by how many MB memory grew."""
    found = collections.Counter()
    before = None
    for seed in seeds:
        try:
            found[call(seed)] += 1
        except BaseException:
            print(f"the call of seed {seed}: boundary.py --calls 1 --seed {seed}", file=sys.stderr)
            raise
        if seed - seeds.start == 1000:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found, (after - (before or after)) / 1024


def report(found, n_calls, seconds, grown):
    for name, n in sorted(found.items()):
        print(f"{n:9} {name}")
    print(f"{n_calls} calls in {seconds:.0f} s; memory grew by {grown:.1f} MB", flush=True)
    assert grown < 200, "memory grows with calls"


def campaign(n_calls, path):
    """Goes on until there have been so many calls in all runs of a record."""
    while (done := record.read(path, "boundary")["inputs"]) < n_calls:
        start = time.monotonic()
        seeds = range(done, min(n_calls, done + SLICE))
        found, is_good = collections.Counter(), False
        try:
            found, grown = calls_of(seeds)
            report(found, len(seeds), time.monotonic() - start, grown)
            is_good = True
        finally:
            with record.changed(path, "boundary") as entry:
                entry["found"] += not is_good
                if is_good:
                    entry["inputs"] += len(seeds)
                    entry["seconds"] = round(entry["seconds"] + time.monotonic() - start)
                    entry["grown_mb"] = round(max(grown, entry.get("grown_mb", 0)), 1)
                    all_found = found + collections.Counter(entry.get("came_of_them", {}))
                    entry["came_of_them"] = dict(sorted(all_found.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=100_000, help="calls to make")
    parser.add_argument("--seed", type=int, default=0, help="the first call's seed")
    parser.add_argument("--record", help="the file that runs are added up in")
    args = parser.parse_args()
    faulthandler.enable()
    maxsim.set_num_threads(1)
    if args.record:
        campaign(args.calls, args.record)
    else:
        start = time.monotonic()
        found, grown = calls_of(range(args.seed, args.seed + args.calls))
        report(found, args.calls, time.monotonic() - start, grown)


if __name__ == "__main__":
    main()
