"""Networks of MNIST trained plainly in PyTorch, to be pruned from their trained weights.

    python benchmarks/train_in_torch.py OUT [--network dense|lenet5] [--epochs N] [--data FOLDER]

Adam with a rate that falls to 0 along a cosine, cross-entropy, no regularisation, images in [0, 1].
Writes OUT/NAME.pt (state_dict) and OUT/NAME.onnx, and prints the accuracy on the test images.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

from secateur import datasets


class DenseNetwork(nn.Sequential):
    """784-300-100-10."""

    def __init__(self):
        super().__init__(
            nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(),
            nn.Linear(100, 10),
        )  # fmt: skip


class LeNet5(nn.Sequential):
    """Caffe's LeNet-5: 431 080 weights."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10),
        )  # fmt: skip


NETWORKS = {"dense": DenseNetwork, "lenet5": LeNet5}


def load_images():
    """Training and test images in [0, 1], of shape (rows, 1, 28, 28), with their labels."""
    mnist = datasets.load_images("mnist")
    parts = []
    for x, y in ((mnist.x_train, mnist.y_train), (mnist.x_test, mnist.y_test)):
        x = np.asarray(x, np.float32)
        x = (x / 255 if x.max() > 1 else x).reshape(-1, 1, 28, 28)
        parts += [x, np.asarray(y).ravel().astype(np.int64)]
    return parts


def measure_accuracy(module, x, y):
    module.eval()
    with torch.no_grad():
        answers = [
            module(torch.from_numpy(x[i : i + 1000])).argmax(1) for i in range(0, len(x), 1000)
        ]
    return float((torch.cat(answers).numpy() == y).mean())


def train(module, x, y, *, epochs, rate=1e-3, batch_size=64, masks=None, decay=0.0):
    """Train a module; masks, by parameter, keep weights at 0; decay is AdamW's, beside the rate."""
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    optimiser = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=decay)
    steps = epochs * (len(x) // batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    module.train()
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for i in range(len(x) // batch_size):
            rows = order[i * batch_size : (i + 1) * batch_size]
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimiser.step()
            schedule.step()
            if masks:
                with torch.no_grad():
                    for p, mask in masks.items():
                        p.mul_(mask)


def write_onnx(module, path):
    torch.onnx.export(
        module.eval(), (torch.zeros(1, 1, 28, 28),), str(path), dynamo=False, input_names=["image"],
        output_names=["logits"], dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--network", choices=list(NETWORKS), default="dense")
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    x, y, x_test, y_test = load_images()
    module = NETWORKS[options.network]()
    train(module, x, y, epochs=options.epochs)
    weights = sum(p.numel() for p in module.parameters())
    print(
        f"{options.network}: {weights} weights, test {measure_accuracy(module, x_test, y_test):.4f}"
    )
    torch.save(module.state_dict(), options.out / f"{options.network}.pt")
    write_onnx(module, options.out / f"{options.network}.onnx")


if __name__ == "__main__":
    main()
