"""PyTorch modules in and out. Skipped where PyTorch is not installed."""

from dataclasses import replace

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

# ruff: noqa: E402
import secateur as sc
from secateur.exports import to_onnx
from secateur.importing import as_trained

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own
]


class Recurrent(torch.nn.Module):
    """Two layers in both directions, and a readout of all of them."""

    def __init__(self, cell):
        super().__init__()
        self.rnn = cell(3, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.readout = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.readout(self.rnn(x)[0].mean(1))


def convolutional():
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(2, 6, 3, bias=False), torch.nn.BatchNorm2d(6), torch.nn.ReLU(),
        torch.nn.Conv2d(6, 4, 3, groups=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 5), torch.nn.Tanh(),
        torch.nn.Linear(5, 2),
    )  # fmt: skip
    for layer in network:
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
            torch.nn.init.normal_(layer.weight)
            torch.nn.init.normal_(layer.bias)
    return network.eval()


def cut_units(trained, f, x, chosen):
    """The model without some of its hidden units, as pruning would leave it."""
    found = sc.units(f, trained.model.params, x)
    hidden = [u for u in found.units if u.kind == "hidden"]
    beliefs = {n: [np.array(q.mean), np.array(q.variance)] for n, q in trained.beliefs.items()}
    for number in chosen(hidden):
        for path, axis, indices in hidden[number].members:
            for part in beliefs[path[2:-2]]:
                part[(slice(None),) * axis + (list(indices),)] = 0
    return replace(trained, beliefs={n: sc.Normal(*parts) for n, parts in beliefs.items()})


def answers(module, x):
    with torch.no_grad():
        return module(torch.from_numpy(x)).numpy()


@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
def test_recurrent(cell):
    """Oracles: PyTorch for the function and the way back, onnxruntime for what is exported."""
    ort = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    module = Recurrent(getattr(torch.nn, cell)).eval()
    x = np.random.default_rng(0).normal(size=(5, 6, 3)).astype(np.float32)
    f, params = sc.from_torch(module, x[:2])
    np.testing.assert_allclose(jax.jit(f)(params, x), answers(module, x), atol=1e-5)
    assert "rnn.weight_ih_l1_reverse/" + ("update" if cell == "GRU" else "cell") in params
    trained = as_trained(sc.BayesianModel(f, params, inference="local"))
    back = sc.to_torch(trained, module)
    np.testing.assert_allclose(answers(back, x), answers(module, x), atol=1e-5)

    def one_of_each(hidden):
        """Unit 1 of every layer and direction: 16 units, four groups of four."""
        stems = {}
        for number, unit in enumerate(hidden):
            own = [p for p, axis, _ in unit.members if "weight_hh" in p and axis == 0]
            stems.setdefault(own[0].split("/")[0], number)
        assert len(hidden) == 16
        assert len(stems) == 4
        return stems.values()

    pruned = cut_units(trained, f, x, one_of_each)
    small = sc.compact(pruned, inputs=x, drop_inputs=False)
    assert small.live_weights == pruned.live_weights
    session = ort.InferenceSession(to_onnx(small, inputs=x))
    weights = {n: q.mean for n, q in pruned.beliefs.items()}
    truth = np.asarray(f(weights, x))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], truth, atol=1e-5)
    module_small = sc.to_torch(small, module)
    assert module_small.rnn.hidden_size == 3
    np.testing.assert_allclose(answers(module_small, x), truth, atol=1e-5)


def test_convolutions_with_batch_normalisation():
    """Folded normalisation goes back into the module's layers. Oracle: PyTorch."""
    module = convolutional()
    x = np.random.default_rng(0).normal(size=(4, 2, 8, 8)).astype(np.float32)
    f, params = sc.from_torch(module, x[:2])
    np.testing.assert_allclose(f(params, x), answers(module, x), atol=1e-5)
    assert "1.weight" not in params
    trained = as_trained(sc.BayesianModel(f, params, inference="local"))
    np.testing.assert_allclose(
        answers(sc.to_torch(trained, module), x), answers(module, x), atol=1e-5
    )
    pruned = cut_units(trained, f, x, lambda hidden: [0, 6, 10])
    small = sc.compact(pruned, inputs=x, drop_inputs=False)
    weights = {n: q.mean for n, q in pruned.beliefs.items()}
    smaller = sc.to_torch(small, module)
    np.testing.assert_allclose(answers(smaller, x), np.asarray(f(weights, x)), atol=1e-5)
    before, after = (sum(p.numel() for p in m.parameters()) for m in (module, smaller))
    assert after < before


def test_weights_that_onnx_gives_further_axes():
    """GroupNorm's scale has axes of length 1 in the file. Oracle: PyTorch."""
    module = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.GroupNorm(2, 4), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(144, 2),
    )  # fmt: skip
    torch.nn.init.normal_(module[1].weight)
    x = np.random.default_rng(0).normal(size=(4, 2, 8, 8)).astype(np.float32)
    trained = as_trained(sc.BayesianModel(*sc.from_torch(module, x[:2]), inference="local"))
    again = sc.to_torch(trained, module)
    np.testing.assert_allclose(answers(again, x), answers(module, x), atol=1e-5)


def test_a_module_that_is_another_one():
    module = torch.nn.Sequential(torch.nn.Linear(3, 2))
    trained = as_trained(sc.BayesianModel(*sc.from_torch(module, np.zeros((1, 3), np.float32))))
    with pytest.raises(ValueError, match="Give the module"):
        sc.to_torch(trained, torch.nn.Sequential(torch.nn.ReLU()))
