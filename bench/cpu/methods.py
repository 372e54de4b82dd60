"""Methods in processes of their own, timed in turns. numpy alone."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy
from python import rows, world

from . import machine

FOLDER = pathlib.Path(__file__).resolve().parent
#: Rounds of turns: at least, at most, and the quartiles' distance that is near enough.
LEAST, MOST, SPREAD = 9, 45, 0.04


class Failed(RuntimeError):
    """What a method's process said."""


class Method:
    """The process of a method."""

    def __init__(self, spec, threads, core, instructions=None):
        env = dict(os.environ)
        for name in ("RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
            env[name] = str(threads)
        env.pop("MAXSIM_CPU", None)
        if instructions:
            env["MAXSIM_CPU"] = instructions
        env["PYTHONPATH"] = os.pathsep.join(
            [str(FOLDER.parent), *filter(None, [env.get("PYTHONPATH")])]
        )
        command = [sys.executable, "-m", "cpu.worker"]
        pin = None if core is None else lambda: os.sched_setaffinity(0, {core})
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
            preexec_fn=pin,
        )  # fmt: skip
        try:
            self.about = self.ask(json.dumps(spec))["about"]
        except Exception:
            self.close()
            raise

    def ask(self, line):
        """The answer to a line."""
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            found = json.loads(self.process.stdout.readline() or "null")
        except BrokenPipeError:
            found = None
        if found is None:
            raise Failed(f"its process ended with {self.process.wait()}")
        if isinstance(found, dict) and "error" in found:
            raise Failed(found["error"])
        return found

    def scores(self):
        """Its scores."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "scores.npy"
            self.ask(f"scores {path}")
            return numpy.load(path)

    def close(self):
        """Ends the process."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class Methods:
    """Methods of one problem by their names, and why others are none."""

    def __init__(self):
        self.methods, self.bad = {}, {}

    def close(self):
        for method in self.methods.values():
            method.close()

    def drop(self, name, why):
        """Leaves out a method."""
        self.methods.pop(name).close()
        self.bad[name] = why

    def check(self, name, right):
        """Leaves out a method whose scores are not `right(scores)`, which raises; its scores."""
        if name not in self.methods:
            return None
        try:
            scores = self.methods[name].scores()
            right(scores)
            return scores
        except (Failed, ValueError) as error:
            self.drop(name, str(error))
            return None

    def turns(self, seconds, of="cpu", n=1):
        """Times of all in turns, {name: [ms]}: on the clock, or of the processes' CPUs; each the
        mean of n calls. Until the quartiles are near each other, or the seconds have passed."""
        times, names = {name: [] for name in self.methods}, list(self.methods)
        start = time.perf_counter()
        for i in range(-1, MOST if names else 0):
            for name in names[i % len(names) :] + names[: i % len(names)]:
                word = "run" if n == 1 else f"loop {n}"
                found = self.methods[name].ask(word)[of == "cpu"]
                # The first round fills caches.
                if i >= 0:
                    times[name].append(found)
            if i + 1 >= LEAST and (is_settled(times) or time.perf_counter() - start > seconds):
                break
        return times


def is_settled(times):
    """Whether the quartiles of all are near each other."""
    quartiles, middle = world.spreads(times), world.figures(times)
    return all(high - low <= SPREAD * middle[name] for name, (low, high) in quartiles.items())


@contextlib.contextmanager
def started(folder, specs, threads=1, core=None):
    """Methods of the problem in a folder: `specs` {name: spec}, in which `MAXSIM_CPU` is the
    instruction set that ours is forced to."""
    found = Methods()
    try:
        for name, spec in specs.items():
            spec = dict(spec)
            forced = spec.pop("MAXSIM_CPU", None)
            try:
                spec |= {"problem": str(folder)}
                found.methods[name] = Method(spec, threads, core, forced)
            except Failed as error:
                found.bad[name] = str(error)
        yield found
    finally:
        found.close()


class Bench:
    """What all rows are measured with."""

    def __init__(self, w):
        import ours

        self.w, self.args = w, w.args
        self.library = str(self.args.library or ours.library_path())
        self.old = str(self.args.old.resolve()) if self.args.old else None
        # The last core is seldom the one that interrupts go to.
        self.core = machine.cores()[-1]
        self.threads = len(machine.cores())
        self.instruction_sets = machine.instruction_sets()
        self.seconds = self.args.seconds

    def small(self, shape):
        """The shape, or the smallest that is like it where the scripts are only tried."""
        if not self.w.tiny:
            return shape
        import dataclasses

        n = min(shape.n_queries, 2)
        candidates = min(shape.candidates, 3)
        return dataclasses.replace(
            shape, n_queries=n, query_len=min(shape.query_len, 8), candidates=candidates,
            n_documents=n * candidates if candidates else min(shape.n_documents, 12),
            document_len=min(shape.document_len, 20), dim=min(shape.dim, 32),
        )  # fmt: skip

    def ours(self, element="f32", form="plain", instructions=None):
        """Our method."""
        spec = {"kind": "maxsim", "library": self.library, "element": element, "form": form}
        return spec | ({"MAXSIM_CPU": instructions} if instructions else {})

    def before(self, element="f32", form="plain"):
        """That of the build before, where there is one."""
        return {"kind": "maxsim", "library": self.old, "element": element, "form": form}

    def roofs(self):
        """What a core can do at most: multiply-adds, and a read of the documents."""
        roof = {"kind": "roof", "library": self.library}
        widest = machine.widest_multiply_add(machine.flags())
        return {
            "multiply-adds": roof | {"what": "multiply_adds", "instructions": widest},
            "read": roof | {"what": "read"},
        }

    def forced_are_heeded(self, folder):
        """Raises where this build does not heed MAXSIM_CPU."""
        with started(folder, {"none": self.ours(instructions="nothing")}) as found:
            if "none" in found.methods:
                raise Failed("this build takes MAXSIM_CPU=nothing: it does not heed the variable")


def near(exact, tolerance):
    """A check of scores against exact ones, relative."""

    def right(scores):
        error = float(numpy.max(numpy.abs(scores - exact) / numpy.abs(exact)))
        if not error <= tolerance:
            raise ValueError(f"scores are off by {error:.2e} relative")

    return right


def without(found, *names):
    """Medians of the others, and why there are none."""
    return {name: value for name, value in found.items() if name not in names}


ratio = rows.ratio
