"""The three workloads of the Hub kernel erikkaum/maxsim beside the kernel itself."""

import functools
import pathlib
import subprocess
import tempfile

import peers
import runner
import torch
from python import world

from . import methods

#: Queries, tokens of each, candidates of each, tokens of each (the kernel's page on the Hub).
WORKLOADS = {
    "SmallRerank": (32, 32, 10, 180),
    "HeavyRerank": (32, 32, 100, 256),
    "LongDocStress": (8, 64, 16, 1024),
}
#: The kernel's source in its checkout, and what makes its function an operator of PyTorch's.
SOURCE = "maxsim_cuda/maxsim.cu"
BINDING = """
#include <torch/library.h>
#include <ATen/ATen.h>
at::Tensor maxsim_padded_forward(at::Tensor, at::Tensor, at::Tensor, at::Tensor, int64_t, int64_t,
                                 int64_t);
TORCH_LIBRARY(maxsim_hub, library) {
    library.def("maxsim_padded_forward", &maxsim_padded_forward);
}
"""


def workloads(w):
    """A row for each workload."""
    bench, hub = runner.bench_of(w), hub_kernel(w)
    for name, (n_queries, query_len, n_docs, doc_len) in WORKLOADS.items():
        words = f"{name}: {n_queries} queries of {query_len} × {n_docs} own documents × {doc_len}"
        with world.reported(words, None) as found:
            problem = methods.problem_of(
                w, n_queries, query_len, n_docs, doc_len, kind="candidates"
            )
            own = methods.ours(bench, problem)
            others = {"PyTorch, eager": functools.partial(eager, problem)}
            others |= peers.calls(problem) | {"erikkaum/maxsim": call(hub, problem)}
            found.append(methods.scored(w, words, problem, own, others))
            own.free()
        yield found


def eager(problem):
    """All similarities at once."""
    found = torch.einsum("qsd,qntd->qnst", problem.queries, problem.padded)
    return found.amax(3).float().sum(2)


def hub_kernel(w):
    """The kernel's operators, compiled from its checkout, or why there are none."""
    try:
        root = pathlib.Path(w.args.peers or ".").resolve() / "maxsim-hub"
        if not root.is_dir():
            raise FileNotFoundError(f"{root} is not there")
        with tempfile.TemporaryDirectory() as folder:
            compile_hub(root, pathlib.Path(folder))
            torch.ops.load_library(f"{folder}/hub.so")
        return torch.ops.maxsim_hub
    except Exception as error:
        return error


def compile_hub(root, folder):
    """Compiles `hub.so` into a folder."""
    from torch.utils import cpp_extension

    (folder / "binding.cu").write_text(BINDING)
    major, minor = torch.cuda.get_device_capability()
    target = f"{major}{minor}"
    command = ["nvcc", "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC"]
    command += ["--expt-relaxed-constexpr", "-DNDEBUG"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += ["-gencode", f"arch=compute_{target},code=sm_{target}"]
    command += [f"-I{path}" for path in cpp_extension.include_paths()]
    command += [f"-L{path}" for path in cpp_extension.library_paths()]
    command += [str(root / SOURCE), str(folder / "binding.cu")]
    command += [f"-l{name}" for name in ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda")]
    command += ["-o", str(folder / "hub.so")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"nvcc: {done.stderr.strip()[-300:]}")


def call(hub, problem):
    """The kernel's call of a problem, or why there is none."""
    if isinstance(hub, Exception):
        return hub
    dim = problem.case.dim
    n, n_docs, doc_len = problem.padded.shape[:3]
    query_len = problem.queries.shape[1]
    lengths = [
        torch.full((n_items,), length, dtype=torch.int32, device=problem.device)
        for n_items, length in ((n, query_len), (n * n_docs, doc_len))
    ]
    rows = problem.queries.view(-1, dim), problem.documents.view(-1, dim)
    sizes = (query_len, doc_len, n_docs)
    return lambda: hub.maxsim_padded_forward(
        rows[0], lengths[0], rows[1], lengths[1], *sizes
    )
