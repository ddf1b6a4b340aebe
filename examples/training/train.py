"""A training loop of PyTorch's on tenure's memory: mixed precision, torch.compile, a CUDA graph, DataLoader workers.

    python train.py [--route process|pool] [--steps N] [--compile default|reduce-overhead|off]

Only the lines that name tenure are about tenure. `--route process` makes every block of the process tenure's; `--route pool` keeps
PyTorch's own cache, over segments of tenure's (docs/libraries/pytorch.md says which to take). The script checks what it shows:
whose the parameters and gradients are, that the loss falls, and that the graph computes what the model computes.
"""

import argparse
import importlib.util

parser = argparse.ArgumentParser()
parser.add_argument("--route", choices=("process", "pool"), default="process")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--compile", choices=("default", "reduce-overhead", "off"), default="default")
options = parser.parse_args()

# Before the first tensor on the GPU: what shall be current, and PyTorch's way to it.
import tenure  # noqa: E402

pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource(), "256MiB")
tenure.mr.set_current_device_resource(pool)
tenure.enable("torch", route=options.route)

import torch  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402


class Points(Dataset):
    """Points of four clouds. Made by the workers, which are forks and take nothing of the GPU's."""

    def __len__(self):
        return options.steps * 128

    def __getitem__(self, index):
        chance = torch.Generator().manual_seed(index)
        label = index % 4
        return torch.randn(64, generator=chance) + label, label


def main():
    torch.manual_seed(0)
    print(tenure.enable("torch", route=options.route))
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 4)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")

    compiled = model
    if options.compile != "off" and importlib.util.find_spec("triton") is None:
        print("triton is not installed, so torch.compile is left out")
    elif options.compile != "off":
        compiled = torch.compile(model, mode=options.compile)

    loader = DataLoader(Points(), batch_size=128, num_workers=2, pin_memory=True, persistent_workers=True)
    losses = []
    for points, labels in loader:
        points, labels = points.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(compiled(points), labels)
        # Backward runs on threads of PyTorch's own: what they allocate is tenure's too. Not what a graph of torch.compile's
        # writes: its results lie in the graph's own memory, which is PyTorch's.
        scaler.scale(loss).backward()
        owned = [pool.owns(p.grad.untyped_storage().data_ptr()) for p in model.parameters()]
        assert all(owned) or options.compile == "reduce-overhead", f"gradients that are not tenure's: {owned}"
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    assert last < first, f"the loss does not fall: {first} to {last}"
    assert all(pool.owns(p.untyped_storage().data_ptr()) for p in model.parameters())

    # A graph of the trained model: captured once, replayed for each input that is copied to its place.
    model.eval()
    place = torch.zeros(128, 64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        model(place)  # what the libraries make at first use, they make outside of the capture
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        answer = model(place)
    right = 0
    for points, _ in DataLoader(Points(), batch_size=128, num_workers=2, pin_memory=True):
        place.copy_(points, non_blocking=True)
        graph.replay()
        # Memory that is taken and dropped meanwhile must be none of the graph's.
        torch.full((1 << 20,), float("nan"), device="cuda")
        with torch.no_grad():
            torch.testing.assert_close(answer, model(place), rtol=1e-3, atol=1e-3)
        right += 1

    print(f"route {options.route}: loss {first:.3f} to {last:.3f} in {len(losses)} steps, {right} replays of the graph")
    print(
        f"PyTorch says {torch.cuda.max_memory_allocated() >> 10} KiB at the most, tenure {pool.info().peak_live_bytes >> 10} KiB"
    )


if __name__ == "__main__":
    main()
