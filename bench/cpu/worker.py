"""A process of one method: what it is comes as a line of JSON, then each line is a wish.

    run          makes a call; [milliseconds on the clock, milliseconds of this process's CPUs]
    loop N       makes N calls; the same of one of them
    scores FILE  makes a call and writes its scores, f32 or f64 `[n_scores]`

The methods' threads are those that the environment gives them.
"""

import ctypes
import json
import os
import sys
import time

import numpy
from cpu.problem import Problem, bf16_bits

ELEMENTS = {"f32": numpy.float32, "f16": numpy.float16}


class Maxsim:
    """The library at a path: elements, `int8` codes, `coarse` to fine, or `plaid2` and `plaid4`."""

    def __init__(self, problem, library, element="f32", form="plain"):
        os.environ["MAXSIM_BENCH_LIBRARY"] = library
        import ours

        shape = problem.shape
        self.device = device = ours.Device(-1, 0)
        sides = [
            (problem.queries, shape.n_queries, shape.query_len, problem.offsets[0]),
            (problem.documents, shape.n_documents, shape.document_len, problem.offsets[1]),
        ]
        handles = [self.tokens(element, form, *side) for side in sides]
        if form.startswith("plaid"):
            handles[1] = self.residual(int(form[5:]), shape)
        self.found = numpy.zeros(shape.n_scores, numpy.float32)
        self.keeps = form == "coarse"
        to = 0 if self.keeps else self.found.ctypes.data
        self.call = ours.Call(device, *handles, shape.candidates, "", to)
        self.about = {"plan": self.call.plan.splitlines()[0]}
        # An instruction set that is not there is an error of the first call.
        self()

    def tokens(self, element, form, rows, n, length, offsets):
        elements = bf16_bits(rows) if element == "bf16" else rows.astype(ELEMENTS[element])
        elements = numpy.ascontiguousarray(elements)
        at, dim = elements.ctypes.data, rows.shape[1]
        device, list_of = self.device, None
        if offsets is not None:
            list_of = (ctypes.c_int64 * (n + 1))(*offsets)
        if form in ("int8", "coarse"):
            words = (b"int8", b"f32", element.encode())
            codes = device("quantize", *words, at, dim, n, length, list_of, 0)
            if form == "int8":
                return device("upload", device.handle, codes)
            place = (element.encode(), at, dim, n, length, list_of)
            return device("screened", device.handle, *place, codes)
        return device.tokens(element, at, dim, n, length, offsets)

    def residual(self, nbits, shape, n_centroids=16384):
        """Documents of random codes and buckets, the same in every process."""
        generator = numpy.random.default_rng(7)
        rows = shape.n_documents * shape.document_len
        centroids = generator.standard_normal((n_centroids, shape.dim), numpy.float32)
        centroids /= numpy.linalg.norm(centroids, axis=1, keepdims=True)
        centroids = centroids.astype(numpy.float16)
        weights = (generator.standard_normal(1 << nbits) * 0.05).astype(numpy.float32)
        codes = generator.integers(0, n_centroids, rows, numpy.int32)
        residuals = generator.integers(0, 256, (rows, shape.dim * nbits // 8), numpy.uint8)
        at = [x.ctypes.data for x in (centroids, weights, codes, residuals)]
        tables = (nbits, at[0], n_centroids, shape.dim, at[1])
        places = (at[2], at[3], shape.n_documents, shape.document_len)
        return self.device.residual("f32", *tables, *places)

    def __call__(self):
        self.call()

    def scores(self):
        self.call()
        if self.keeps:
            self.call.read(self.found.ctypes.data)
        return self.found


class NumKong:
    """NumKong's packed matrices, a call per pair. `packs`: whether documents are packed in the call
    too. `without`: instruction sets that it is not to use."""

    def __init__(self, problem, element="f32", packs=False, without=()):
        import numkong

        self.numkong, self.element, self.problem = numkong, element, problem
        for name in without:
            numkong.disable_capability(name)
        self.packs, shape = packs, problem.shape
        self.queries = [self.pack(problem.query(q)) for q in range(shape.n_queries)]
        self.documents = [problem.document(d) for d in range(shape.n_documents)]
        if not packs:
            self.documents = [self.pack(rows) for rows in self.documents]
        self.lengths = [len(problem.query(q)) for q in range(shape.n_queries)]
        self.about = {"version": numkong.__version__}

    def pack(self, rows):
        if self.element == "f16":
            rows = rows.astype(numpy.float16)
        if self.element == "bf16":
            rows = self.numkong.astype(self.numkong.from_dlpack(rows.copy()), "bf16")
        return self.numkong.maxsim_pack(rows, dtype=self.element)

    def scores(self):
        # It sums 1 − cosine: of rows of length 1 the rest is the sum of dot products.
        score, documents = self.numkong.maxsim_packed, self.documents
        if self.packs:
            documents = [self.pack(rows) for rows in documents]
        pairs = self.problem.pairs()
        found = [self.lengths[q] - score(self.queries[q], documents[d]) for q, d in pairs]
        return numpy.array(found)

    __call__ = scores


class Batched:
    """Both sides as arrays: documents `[queries, k · len, dim]` of their own, or shared ones."""

    def __init__(self, problem):
        shape = self.shape = problem.shape
        self.queries = problem.queries.reshape(shape.n_queries, shape.query_len, shape.dim)
        n = shape.n_queries if shape.candidates else 1
        self.documents = problem.documents.reshape(n, -1, shape.dim)
        self.about = {}


class Numpy(Batched):
    """numpy's product and maximum, documents or the query first."""

    def __init__(self, problem, query_first=False):
        super().__init__(problem)
        self.query_first = query_first
        self.about = {"version": numpy.__version__}

    def scores(self):
        shape, found = self.shape, []
        for q, query in enumerate(self.queries):
            documents = self.documents[q if shape.candidates else 0]
            if self.query_first:
                products = (query @ documents.T).reshape(shape.query_len, -1, shape.document_len)
                found.append(products.max(2).sum(0))
            else:
                products = (documents @ query.T).reshape(-1, shape.document_len, shape.query_len)
                found.append(products.max(1).sum(1))
        return numpy.concatenate(found)

    __call__ = scores


class Torch(Batched):
    """PyTorch's product and maximum."""

    def __init__(self, problem, element="f32"):
        import torch

        super().__init__(problem)
        self.torch = torch
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[element]
        self.queries = torch.from_numpy(self.queries).to(kind)
        self.documents = torch.from_numpy(self.documents).to(kind)
        self.about = {"version": torch.__version__}

    def __call__(self):
        shape = self.shape
        with self.torch.inference_mode():
            products = self.torch.matmul(self.documents, self.queries.transpose(1, 2))
            sides = (shape.n_queries, -1, shape.document_len, shape.query_len)
            return products.view(sides).amax(2).float().sum(2).flatten()

    def scores(self):
        return self().numpy()


class MaxsimCpu(Batched):
    """maxsim-cpu, a call per query."""

    def __init__(self, problem):
        import importlib.metadata

        import maxsim_cpu

        super().__init__(problem)
        self.score = maxsim_cpu.maxsim_scores
        self.about = {"version": importlib.metadata.version("maxsim-cpu")}

    def scores(self):
        shape, found = self.shape, []
        for q, query in enumerate(self.queries):
            documents = self.documents[q if shape.candidates else 0]
            documents = documents.reshape(-1, shape.document_len, shape.dim)
            found.append(self.score(query, documents))
        return numpy.concatenate(found)

    __call__ = scores


class Roof:
    """What one core can do at most: `multiply_adds` of the problem by an instruction set, or a
    `read` of its documents."""

    def __init__(self, problem, library, what, instructions="avx2"):
        os.environ["MAXSIM_BENCH_LIBRARY"] = library
        import ours

        self.device, self.what = ours.Device(-1, 0), what
        self.made = ctypes.c_double()
        if what == "read":
            self.words = problem.documents.view(numpy.uint64).reshape(-1)
            arguments = (self.words.ctypes.data, len(self.words))
        else:
            arguments = (instructions.encode(), problem.shape.multiply_adds)
        self.arguments = (*arguments, ctypes.byref(self.made))
        # f32 multiply-adds are counted one by one, of which there are at least so many.
        self()
        of = 1.0 if what == "read" else self.made.value / problem.shape.multiply_adds
        self.about = {"of_wanted": of}

    def __call__(self):
        function = "read_host" if self.what == "read" else "fused_multiply_adds"
        self.device(function, *self.arguments)


METHODS = {
    "maxsim": Maxsim,
    "numkong": NumKong,
    "numpy": Numpy,
    "torch": Torch,
    "maxsim-cpu": MaxsimCpu,
    "roof": Roof,
}


def timed(call, n=1):
    """Milliseconds of a call, of n: on the clock, and of this process's CPUs."""
    clock, cpu = time.perf_counter(), time.process_time()
    for _ in range(n):
        call()
    ended = (time.perf_counter(), time.process_time())
    return [(end - start) / n * 1e3 for end, start in zip(ended, (clock, cpu))]


def answer(method, words):
    """The answer to a wish."""
    match words:
        case ["run"]:
            return timed(method)
        case ["loop", n]:
            return timed(method, int(n))
        case ["scores", path]:
            numpy.save(path, method.scores())
            return "written"
    raise ValueError(f"no such wish: {' '.join(words)}")


def main():
    """Answers until its input ends."""
    said = sys.stdout
    # What libraries print is no answer.
    sys.stdout = sys.stderr

    def say(what):
        print(json.dumps(what), file=said, flush=True)

    spec = json.loads(sys.stdin.readline())
    try:
        kind, problem = spec.pop("kind"), Problem.load(spec.pop("problem"))
        method = METHODS[kind](problem, **spec)
        say({"about": method.about})
        for line in sys.stdin:
            say(answer(method, line.split()))
    except Exception as error:
        say({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})


if __name__ == "__main__":
    main()
