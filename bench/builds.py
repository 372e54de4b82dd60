#!/usr/bin/env python3
"""Times two builds of maxsim beside each other: the same cases, one process, in turns.

    builds.py OLD NEW --out DIR [--options normalize=1] [CASE ...]

OLD and NEW are the benchmark's library (libmaxsim_bench.so) of each build. Cases are those of the
campaign and of training (`campaign.py list`, `training.py list`); all without names. With --options
those of the campaign alone run, with these options of the C interface in place of their own.
DIR/builds.json has, of each case, both medians, the new one over the old one, the cost of an
enqueue, and whether both builds gave the same bits. Ends with 1 where a case failed or bits differ.
"""

import argparse
import datetime
import gc
import hashlib
import json
import os
import pathlib
import statistics
import sys
import types

import torch

import cases
import compressed
import data
import ours
import runner
import timing
import training

PROTOCOL = (
    "both builds in one process on the same data, in turns, the first another each round; 512 MB "
    "read before each timed call; medians of CUDA-event differences with the queue kept full; "
    "enqueue_rust_us: the least of the means of 64 calls, builds in turns"
)
ENQUEUE_TURNS, ENQUEUES = 12, 64


class Build:
    """One of the two libraries, with a device of its own on PyTorch's stream."""

    def __init__(self, path, timer):
        self.path = path
        self.use()
        self.bench = types.SimpleNamespace(
            timer=timer,
            on_gpu=True,
            device=ours.Device(0, torch.cuda.current_stream().cuda_stream),
        )

    def use(self):
        """What is made next is made by this library."""
        os.environ["MAXSIM_BENCH_LIBRARY"] = str(self.path)


def forward(build, case, variant):
    """{"forward": call} of a forward case, its outputs, and what frees it."""
    build.use()
    if case.format:
        problem = compressed.PROBLEMS[case.format](case, "cuda")
        kind = compressed.Screened if case.format == "coarse" else compressed.Stored
        one = kind(build.bench, problem)
        uploaded = one.uploaded
    else:
        problem = data.Problem(case, "cuda")
        one = runner.Ours(build.bench, problem, variant, variant.options)
        uploaded = []
    outputs = [one.run()] + ([one.winners] if one.winners is not None else [])

    def free(kept=problem):
        one.free()
        build.bench.device.free(*uploaded)

    return {"forward": one.call}, outputs, free


def step(build, case, _):
    """The calls of a training step, its outputs and gradients, and what frees it."""
    build.use()
    problem = data.Problem(case, "cuda")
    generator = torch.Generator(device="cuda").manual_seed(3)
    g = torch.randn(case.n_queries, case.n_docs, device="cuda", generator=generator)
    one = training.Ours(problem, g)
    calls = {"forward": one.call, "backward": one.step.backward, "step": one.step}

    def free(kept=(problem, g)):
        one.step.free()
        one.call.free()
        one.device.free(*one.handles)

    return calls, [one.scores, one.winners, *one.gradients], free


def compared(builds, make, case, variant, seconds):
    """The row of a case."""
    made = {name: make(build, case, variant) for name, build in builds.items()}
    torch.cuda.synchronize()
    outputs = [outputs for _, outputs, _ in made.values()]
    same = all(torch.equal(raw(a), raw(b)) for a, b in zip(*outputs))
    kinds = list(next(iter(made.values()))[0])
    methods = {f"{name} {kind}": made[name][0][kind] for kind in kinds for name in made}
    timer = next(iter(builds.values())).bench.timer
    results = timing.measure(timer, methods, seconds, rounds_min=9, warm=False)
    found = {"case": case.words + (variant.words if variant else ""), "same_bits": same}
    for kind in kinds:
        old, new = (results[f"{name} {kind}"] for name in ("old", "new"))
        for result in (old, new):
            if "error" in result:
                raise RuntimeError(f"{kind}: {result['error']}")
        found[kind] = {
            "old_ms": old["ms"],
            "new_ms": new["ms"],
            "new_over_old": round(new["ms"] / old["ms"], 4),
            "iqr_ms": [old["iqr_ms"], new["iqr_ms"]],
        }
    calls = {name: calls["forward"] for name, (calls, *_) in made.items()}
    found["enqueue_rust_us"] = enqueues(calls)
    torch.cuda.synchronize()
    for *_, free in made.values():
        free()
    return found


def raw(tensor):
    """A tensor's bytes: NaN equals itself, and -0 is not 0."""
    return tensor.contiguous().view(torch.uint8).reshape(-1)


def enqueues(calls):
    """Least mean host time of an enqueue of each build, and the median of the means."""
    means = {name: [] for name in calls}
    for turn in range(ENQUEUE_TURNS):
        for name in list(calls)[:: -1 if turn % 2 else 1]:
            means[name].append(calls[name].enqueue_us(ENQUEUES))
            torch.cuda.synchronize()
    return {
        name: {"least": round(min(all), 3), "median": round(statistics.median(all), 3)}
        for name, all in means.items()
    }


def chosen(names):
    """(what makes it, case, variant) of the named cases, or of all."""
    forwards = [
        (forward, case, variant)
        for case in cases.CASES + cases.COMPRESSED
        for variant in case.variants
        # Which kernel is the fastest of several is another question.
        if not variant.row
    ]
    steps = [(step, one.case, None) for one in training.TRAININGS]
    unknown = set(names) - {case.name for _, case, _ in forwards + steps}
    if unknown:
        sys.exit(f"no case {', '.join(sorted(unknown))}")
    return [one for one in forwards + steps if not names or one[1].name in names]


def with_options(wanted, options):
    """Each forward case once, with these options in place of its variants' own."""
    first = {case.name: case for make, case, _ in wanted if make is forward}
    variant = cases.Variant(f", {options}", options)
    return [(forward, case, variant) for case in first.values()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"))
    parser.add_argument("--options", help="of the calls, such as normalize=1")
    parser.add_argument("--seconds", type=float, default=2.0, help="per case (default 2)")
    args = parser.parse_intermixed_args()
    wanted = chosen(args.cases)
    if args.options:
        wanted = with_options(wanted, args.options)
    args.out.mkdir(parents=True, exist_ok=True)
    timer = timing.Cuda(torch)
    paths = {"old": args.old.resolve(), "new": args.new.resolve()}
    builds = {name: Build(path, timer) for name, path in paths.items()}
    found = {
        "gpu": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "protocol": PROTOCOL,
        "libraries_sha256": {
            name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()
        },
        "rows": [],
    }
    bad = 0
    for make, case, variant in wanted:
        try:
            row = compared(builds, make, case, variant, args.seconds)
            bad += not row["same_bits"]
        except Exception as error:
            row = {"case": case.words, "error": timing.said(error)}
            bad += 1
        gc.collect()
        torch.cuda.empty_cache()
        found["rows"].append(row)
        (args.out / "builds.json").write_text(json.dumps(found, indent=1) + "\n")
        parts = [part for part in row.values() if isinstance(part, dict)]
        ratios = [part["new_over_old"] for part in parts if "new_over_old" in part]
        said = [row.get("error") or ("same bits" if row["same_bits"] else "BITS DIFFER")]
        print(row["case"], *ratios, *said, sep="  ", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
