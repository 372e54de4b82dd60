"""Steps of Chamfer distances, forward and backward, beside flash-maxsim's.

Ours are checked before they are timed: each neighbour is as near as the nearest, and the value is
the mean of what float64 gives for the neighbours. Peers are timed with whatever value they give: a
row names one whose value is wrong as such.
"""

import math

import ours
import runner
import torch
from python import packages, rows, world

from . import goals

#: Points that are compared with all others where comparing all of them would take minutes.
SAMPLED = 20_000
#: Elements of differences that are held at once.
CHUNK = 1 << 26


def unit(n, dim, generator, device):
    """Rows of length 1."""
    rows_of = torch.randn(n, dim, generator=generator, device=device)
    return torch.nn.functional.normalize(rows_of, dim=-1)


def converging(n, dim, generator, device):
    """A sphere, and the same points after noise: the end of a training run."""
    x = unit(n, dim, generator, device)
    return x, x + 1e-3 * torch.randn(n, dim, generator=generator, device=device)


def cube(n, dim, generator, device):
    """Points evenly in a cube."""
    return tuple(torch.rand(n, dim, generator=generator, device=device) for _ in range(2))


def scan(n, shift, generator, device):
    """What a scanner of 64 beams, 1.8 m above the ground between walls, sees: m."""
    def even(low, high, size=n):
        return low + (high - low) * torch.rand(size, generator=generator, device=device)

    beam = torch.randint(64, (n,), generator=generator, device=device)
    up = torch.deg2rad(-25.0 + 28.0 * beam / 63.0)
    around = even(-math.pi, math.pi)
    # Walls stand at 6 to 60 m, some metres wide each.
    walls = even(6.0, 60.0, 256)
    wall = walls[((around + math.pi) / (2 * math.pi) * 255).long()]
    ground = torch.where(up < -0.02, -1.8 / torch.tan(up), torch.full_like(up, math.inf))
    flat = torch.minimum(wall, ground) + even(-0.02, 0.02)
    points = torch.stack([flat * torch.cos(around), flat * torch.sin(around),
                          flat * torch.tan(up)], dim=-1)
    return points + torch.tensor([shift, 0.0, 0.0], device=device)


def scene(n, _, generator, device):
    """Two scans of one street, half a metre apart."""
    state = generator.get_state()
    first = scan(n, 0.0, generator, device)
    # The same walls, other points.
    generator.set_state(state)
    second = scan(n, 0.5, generator, device)
    jitter = 0.02 * torch.randn(n, 3, generator=generator, device=device)
    return first, second + jitter


SCENES = {"converging": converging, "cube": cube, "scene": scene}


def clouds(w, name, n_clouds, n, dim, dtype=torch.float32):
    """Two clouds, or batches of them, `[n_clouds, n, dim]`."""
    generator = torch.Generator(device=w.device).manual_seed(n + dim)
    pairs = [SCENES[name](n, dim, generator, w.device) for _ in range(n_clouds)]
    return [torch.stack(side).to(dtype).contiguous() for side in zip(*pairs)]


class Ours:
    """Our step of two batches of clouds."""

    def __init__(self, bench, x, y):
        self.points, self.device = (x, y), bench.device
        elements = {torch.float32: "f32", torch.float16: "f16"}
        sides = [
            self.device.tokens(
                elements[side.dtype], side.data_ptr(), side.shape[2], *side.shape[:2]
            )
            for side in (x, y)
        ]
        self.step = ours.Chamfer(self.device, *sides)

    def found(self):
        """Values, neighbours and gradients of the last step, on the device."""
        x, y = self.points
        values = torch.empty(x.shape[0])
        places = [torch.empty(side.shape[:2], dtype=torch.int32) for side in self.points]
        grads = [torch.empty(side.shape) for side in self.points]
        self.step.read(*(to.data_ptr() for to in (values, *places, *grads)))
        return [to.to(x.device) for to in (values, *places, *grads)]


def nearest(points, others):
    """Least squared distances of points to others in float64."""
    points, others = points.double(), others.double()
    dim, best = points.shape[1], []
    step = max(1, CHUNK // max(1, others.shape[0] * (dim if dim <= 16 else 2)))
    for part in points.split(step):
        if dim <= 16:
            best.append((part[:, None] - others).square().sum(-1).amin(1))
        else:
            # Centred, an expansion in float64 loses nothing that counts here.
            middle = others.mean(0)
            a, b = part - middle, others - middle
            products = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
            best.append(products.amin(1).clamp_min(0))
    return torch.cat(best)


def check(x, y, found):
    """Compares a step with float64: neighbours, the values, and the gradient of the first side."""
    values, of_x, of_y, grad_x, _ = found
    dim = x.shape[2]
    # What a distance may err by, of itself: it is a sum of f32 differences.
    slack = 4 * (dim + 2) * 2.0**-24
    for i in range(x.shape[0]):
        total, chosen = 0.0, []
        for points, others, places in ((x[i], y[i], of_x[i]), (y[i], x[i], of_y[i])):
            if bool(((places < 0) | (places >= others.shape[0])).any()):
                raise ValueError("a neighbour is no point")
            near = others[places.long()].double()
            distances = (points.double() - near).square().sum(-1)
            chosen.append(near)
            total += float(distances.mean())
            n = points.shape[0]
            some = torch.arange(n, device=points.device)
            if n * others.shape[0] > 2_000_000_000:
                some = torch.linspace(0, n - 1, SAMPLED, device=points.device).long()
            # Beyond 16 dims the reference expands squares.
            least = nearest(points[some], others) * (1 + slack) + (1e-12 if dim > 16 else 0.0)
            wrong = distances[some] > least
            if bool(wrong.any()):
                raise ValueError(f"{int(wrong.sum())} of {len(some)} neighbours are not nearest")
        error = abs(float(values[i]) / total - 1) if total else abs(float(values[i]))
        if not error <= 1e-6:
            raise ValueError(f"a value is off by {error:.2e} of itself")
        wanted = 2 / x.shape[1] * (x[i].double() - chosen[0])
        pulls = 2 / y.shape[1] * (x[i].double()[of_y[i].long()] - y[i].double())
        wanted.index_add_(0, of_y[i].long(), pulls)
        if world.cosine(grad_x[i], wanted) < (world.COSINE if x.dtype == torch.float32 else 0.9999):
            raise ValueError("gradients are not those of float64")


def flash(x, y):
    """flash-maxsim's step of one pair of clouds: a call that gives its value."""
    chamfer = packages.original("flash_maxsim.flash_chamfer")
    p, q = (side[0].clone().requires_grad_(True) for side in (x, y))

    def step():
        p.grad = q.grad = None
        value = chamfer.flash_chamfer_train(p, q)
        value.backward()
        return value.detach()

    return step


def measured(w, bench, name, n_clouds, n, dim, dtype=torch.float32, peer=True):
    """Times of a step of ours and of the peer's, and what is said of them."""
    x, y = clouds(w, name, n_clouds, n, dim, dtype)
    one = Ours(bench, x, y)
    one.step()
    w.timer.synchronize()
    found = one.found()
    check(x, y, found)
    methods, about = {"maxsim": one.step}, {}
    if peer:
        try:
            step = flash(x, y)
            about["value_of_peer"] = float(step()) / float(found[0][0])
            methods["flash-maxsim"] = step
        except Exception as error:
            about["flash-maxsim"] = world.timing.said(error)
    times = w.device_ms(methods)
    middle = world.figures(times)
    about |= {"ms": middle, "quartiles": world.spreads(times)}
    if "flash-maxsim" in middle:
        about["x"] = middle["flash-maxsim"] / middle["maxsim"]
    return one, about


def slowest(w, bench, n, dim, dtype=torch.float32, scenes=tuple(SCENES), peer=True):
    """The most that a step of any scene takes, and the least that it is faster by."""
    found = {}
    for name in scenes:
        one, found[name] = measured(w, bench, name, 1, n, dim, dtype, peer)
        one.step.free()
        if w.on_gpu:
            torch.cuda.empty_cache()
    ms = max(about["ms"]["maxsim"] for about in found.values())
    ratios = [about.get("x") for about in found.values()]
    # A scene without a peer's time compares nothing.
    return ms, None if None in ratios else min(ratios), found


def peer_of(scenes):
    """The peer that scenes are timed beside, in words that say where its value is wrong; None where
    there is none."""
    timed = {name: about for name, about in scenes.items() if "x" in about}
    wrong = [f"{about['value_of_peer']:.4g} × ours in {name}" for name, about in timed.items()
             if not abs(about["value_of_peer"] - 1) <= world.TOLERANCE_PEERS]
    if not timed:
        return None
    return f"flash-maxsim, whose value is wrong: {', '.join(wrong)}" if wrong else "flash-maxsim"


def with_peer(row, scenes):
    """A row of scenes of several kinds that says beside what these are timed."""
    every = {f"{word} {name}": about for word, of in scenes.items() for name, about in of.items()}
    return row | {"peer": peer_of(every)}


def chamfer(w):
    """The rows of Chamfer distances."""
    for rows_of in (of_points, of_batch, of_many_dims):
        yield rows_of(w)


def of_points(w):
    goal = goals.GOALS[goals.CHAMFER](w.card)
    with world.reported(goals.CHAMFER, goal) as found:
        bench, figures, scenes = runner.bench_of(w), {}, {}
        sizes = {"10k": 10_000, "100k": 100_000, "1m": 1_000_000}
        for word, n in sizes.items():
            ms, x, about = slowest(w, bench, w.size(n, 60), 3, peer=word != "1m")
            figures |= {f"ms_{word}": ms, f"x_{word}": x}
            scenes[word] = about
        del figures["x_1m"]
        row = rows.row(goals.CHAMFER, goal, figures["ms_1m"], "ms", scenes=scenes, **figures)
        found.append(with_peer(row, scenes))
    return found


def launches(w, call):
    """Kernels that a call launches; None where they cannot be counted."""
    if not w.on_gpu:
        return None
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        call()
        w.timer.synchronize()
    on_device = torch.autograd.DeviceType.CUDA
    names = [event.name for event in profile.events() if event.device_type == on_device]
    return sum(not name.startswith(("Memset", "Memcpy")) for name in names) or None


def of_batch(w):
    goal = goals.GOALS[goals.BATCH](w.card)
    with world.reported(goals.BATCH, goal) as found:
        bench = runner.bench_of(w)
        n_clouds, n = w.size(32), w.size(2048, 30)
        one, about = measured(w, bench, "cube", n_clouds, n, 3, peer=False)
        counts = [launches(w, lambda part=part: one.step.run(part)) for part in (0, 2)]
        row = rows.row(
            goals.BATCH, goal, about["ms"]["maxsim"], "ms", quartiles=about["quartiles"],
            forward_launches=counts[0], backward_launches=counts[1],
        )  # fmt: skip
        one.step.free()
        found.append(row)
    return found


def of_many_dims(w):
    goal = goals.GOALS[goals.DIM_128](w.card)
    with world.reported(goals.DIM_128, goal) as found:
        bench, figures, scenes = runner.bench_of(w), {}, {}
        n, dim = w.size(100_000, 60), w.size(128, 20)
        for word, dtype in (("f32", torch.float32), ("f16", torch.float16)):
            ms, x, about = slowest(w, bench, n, dim, dtype, ("converging", "cube"))
            figures |= {f"ms_{word}": ms, f"x_{word}": x}
            scenes[word] = about
        row = rows.row(goals.DIM_128, goal, figures["ms_f32"], "ms", scenes=scenes, **figures)
        found.append(with_peer(row, scenes))
    return found
