"""The folder that `cargo xtask hub` lays out, as the Hugging Face `kernels` library loads it.

MAXSIM_HUB is that folder. The installed package is in the same process.
"""

import ast
import os
import platform
import sys
from pathlib import Path

import pytest
import torch

import maxsim

kernels = pytest.importorskip("kernels")
if "MAXSIM_HUB" not in os.environ:
    pytest.skip("MAXSIM_HUB names no folder", allow_module_level=True)

from kernels._rust import Backend, Digest, Metadata  # noqa: E402
from kernels.variants import parse_variant  # noqa: E402

FOLDER = Path(os.environ["MAXSIM_HUB"])
VARIANTS = sorted((FOLDER / "build").iterdir())
#: What there are wheels for.
PROCESSORS = {"x86_64", "aarch64"}
#: What a kernel may import that is not its own: the standard library and torch. (numpy is there
#: for who hands in its arrays, and ml_dtypes for bfloat16 ones.)
ALLOWED = {"torch", "numpy", "ml_dtypes", *sys.stdlib_module_names}


@pytest.fixture(scope="module", params=[None, "cpu"], ids=["default", "cpu"])
def kernel(request):
    """The module as `kernels` loads it: for torch's own GPU toolkit, and for the CPU."""
    backend = request.param
    has_cuda = torch.version.cuda is not None
    loaded = kernels.get_local_kernel(FOLDER, backend=backend)
    kind = "cpu" if backend == "cpu" or not has_cuda else "cuda"
    assert loaded.__name__.startswith(f"_maxsim_{kind}_"), loaded.__name__
    return loaded


def tokens(*shape, seed=0, device="cpu"):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


@pytest.mark.parametrize("device", ["cpu"] + (["cuda"] if torch.cuda.is_available() else []))
def test_scores_and_gradients_are_those_of_the_installed_package(kernel, device):
    assert kernel is not maxsim and kernel._maxsim is not maxsim._maxsim
    assert Path(kernel.__file__).is_relative_to(FOLDER)
    found = []
    for module in (kernel, maxsim):
        Q = tokens(3, 5, 64, device=device).requires_grad_()
        D = tokens(7, 11, 64, seed=1, device=device).requires_grad_()
        scores = module.maxsim(Q, D, normalize=True)
        scores.square().sum().backward()
        found.append((scores.detach(), Q.grad, D.grad))
    for ours, installed in zip(*found):
        assert torch.equal(ours, installed)


def test_operators_of_two_builds_do_not_meet(kernel):
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    Q, D = tokens(3, 5, 64), tokens(7, 11, 64, seed=1)
    for module in (kernel, maxsim):
        compiled = torch.compile(
            lambda Q, D, module=module: module.maxsim(Q, D), backend=backend, fullgraph=True)
        assert torch.equal(compiled(Q, D), maxsim.maxsim(Q, D))
    name = "padded_scores"
    called = [
        {str(node.target) for node in graph.graph.nodes if str(node.target).endswith(f".{name}")}
        for graph in graphs
    ]
    assert called == [{f"{kernel.__name__}.{name}"}, {f"maxsim.{name}"}]
    operators = [getattr(torch.ops, module.__name__).score for module in (kernel, maxsim)]
    assert operators[0] is not operators[1]


def test_parts_are_reached_by_attributes(kernel):
    D = tokens(2, 3, 7, 16)
    score = kernel.compat.kernels_hub.score_candidates_padded
    lengths = torch.tensor([5, 4]), torch.full((2, 3), 7)
    assert score(tokens(2, 5, 16), D, *lengths).shape == (2, 3)
    assert kernel.losses.contrastive(tokens(3, 3)).ndim == 0
    assert kernel.integrations.pylate.__name__ == f"{kernel.__name__}.integrations.pylate"
    for module in (kernel, kernel.compat, kernel.integrations):
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            module.nothing


def test_the_layer_takes_the_place_of_a_models_own():
    from kernels import LocalLayerRepository, Mode, kernelize, use_kernel_mapping

    @kernels.use_kernel_forward_from_hub("MaxSim")
    class Own(torch.nn.Module):
        def forward(self, Q, D, q_mask=None, d_mask=None):
            raise AssertionError("the model's own layer ran")

    repository = LocalLayerRepository(repo_path=FOLDER, layer_name="MaxSim")
    with use_kernel_mapping({"MaxSim": {"cpu": repository, "cuda": repository}}):
        model = kernelize(Own(), mode=Mode.TRAINING | Mode.TORCH_COMPILE, device="cpu",
                          use_fallback=False)
    Q, D = tokens(3, 5, 64), tokens(7, 11, 64, seed=1)
    assert torch.equal(model(Q, D), maxsim.maxsim(Q, D))
    mask = torch.arange(11) < torch.tensor([[4]] * 7)
    assert torch.equal(model(Q, D, d_mask=mask), maxsim.maxsim(Q, D[:, :4]))


@pytest.mark.parametrize("folder", VARIANTS, ids=lambda folder: folder.name)
def test_a_variant_is_what_its_metadata_says(folder):
    variant = parse_variant(folder.name)
    assert str(variant.framework.version) == "2.9"
    assert variant.arch.platform in PROCESSORS and variant.arch.os == "linux"
    metadata = Metadata.read_from_file(folder / "metadata.json")
    assert (str(metadata.name), metadata.version) == ("maxsim", 1)
    assert metadata.license == "MIT OR Apache-2.0"
    assert metadata.python_depends == [] and metadata.kernel_depends == []
    kind = variant.arch.backend.name
    assert metadata.backend.backend_type == Backend.from_str(kind)
    assert metadata.backend.archs == (["8.0+PTX", "9.0a"] if kind == "cuda" else None)
    metadata.digest.validate(Digest.hash_variant(metadata.digest.algorithm, folder))
    assert (folder / "LICENSE-MIT").is_file() and (folder / "LICENSE-APACHE").is_file()


def test_the_library_asks_for_pythons_stable_interface_alone():
    from kernel_abi_check import ObjectFile

    for folder in VARIANTS:
        assert ObjectFile(folder / "_maxsim.abi3.so").check_python_abi("3.9") == []


def test_variants_are_for_every_toolkit_and_no_two_have_one_name():
    arches = [parse_variant(folder.name).arch for folder in VARIANTS]
    processors = {arch.platform for arch in arches}
    assert platform.machine() in processors
    for processor in processors:
        toolkits = {arch.backend.variant_str for arch in arches if arch.platform == processor}
        assert toolkits == {"cpu", "cu126", "cu128", "cu130"}
    names = {Metadata.read_from_file(folder / "metadata.json").id for folder in VARIANTS}
    assert len(names) == len(VARIANTS)
    assert all(name.isidentifier() for name in names)
    assert (FOLDER / "README.md").is_file()


def test_nothing_is_imported_by_a_name_that_a_kernel_has_not():
    strangers = []
    for path in sorted(VARIANTS[0].rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module]
            else:
                continue
            strangers += [(path.name, name) for name in modules
                          if name.partition(".")[0] not in ALLOWED]
    assert strangers == []
