"""More than one device, and more than one process, give what one device gives."""

from __future__ import annotations

import os
import socket

import pytest

from processes import output, start

COMMON = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
if len(sys.argv) > 1:
    jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
import secateur as sc

rng = np.random.default_rng(0)
x = rng.normal(size=(160, 4)).astype("float32")
y = (np.sin(x[:, :1]) + 0.1 * rng.normal(size=(160, 1))).astype("float32")
def net(p, x):
    return jax.nn.relu(x @ p["w"] + p["b"]) @ p["v"]
key = jax.random.key(0)
k1, k2 = jax.random.split(key)
w, v = jax.random.normal(k1, (4, 16)), jax.random.normal(k2, (16, 1))
params = {"w": w, "b": jnp.zeros((1, 16)), "v": v}
def fit(params, data, **options):
    model = sc.BayesianModel(net, params)
    found = sc.fit(model, data, key=key, epochs=60, batch_size=32, progress=False, **options)
    print("free energy", found.free_energy, flush=True)
    return found
"""

ONE = COMMON + "\nfit(params, (x, y))"

EIGHT = (
    COMMON
    + """
assert len(jax.devices()) == 8
mesh = Mesh(np.array(jax.devices()), ("rows",))
fit(params, (x, y), mesh=mesh)
rows = NamedSharding(mesh, P("rows"))
data = jax.device_put((x, y), rows)
fit(params, data)
sharded = params | {"w": jax.device_put(params["w"], NamedSharding(mesh, P(None, "rows")))}
fit(sharded, data)
fit(params, (x[:100], y[:100]), mesh=mesh)  # 100 rows on 8 devices
explicit = jax.make_mesh((4, 2), ("rows", "more"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
with jax.set_mesh(explicit):
    fit(params, (x, y), mesh=explicit)
rows = NamedSharding(explicit, P(("rows", "more")))
placed = params | {"w": jax.device_put(params["w"], NamedSharding(explicit, P(None, "rows")))}
fitted = fit(placed, jax.device_put((x, y), rows))
print("predicted", float(fitted.predict(jax.device_put(x, rows)).mean.sum()))
"""
)

TWO = (
    COMMON
    + """
assert jax.process_count() == 2 and len(jax.devices()) == 4
mesh = Mesh(np.array(jax.devices()), ("rows",))
rows = NamedSharding(mesh, P("rows"))
half = slice(80 * jax.process_index(), 80 * (jax.process_index() + 1))
data = tuple(jax.make_array_from_process_local_data(rows, a[half]) for a in (x, y))
fit(params, data, checkpoint=sys.argv[3])  # each process brings its half of the rows
fit(params, data, checkpoint=sys.argv[3])  # and goes on from the checkpoint
fit(params, (x, y), mesh=mesh)  # each process has all of them
"""
)


def start_on(devices, program, *arguments):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return start(
        program, *arguments, warnings="error::UserWarning", XLA_FLAGS=flags, JAX_ENABLE_X64="0"
    )


def free_energies(process):
    lines = [line for line in output(process, 120).splitlines() if line.startswith("free energy")]
    return [float(line.split()[-1]) for line in lines]


@pytest.fixture(scope="module")
def one():
    (value,) = free_energies(start_on(1, ONE))
    return value


@pytest.mark.slow
def test_eight_devices_give_what_one_gives(one):
    by_mesh, by_data, by_weights, other, *explicit = free_energies(start_on(8, EIGHT))
    assert len(explicit) == 2
    for value in (by_mesh, by_data, by_weights, *explicit):
        assert value == pytest.approx(one, rel=1e-4)
    assert other != pytest.approx(one, rel=1e-2)  # fewer rows


@pytest.mark.slow
def test_two_processes_give_what_one_gives(one, tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    address = f"127.0.0.1:{port}"
    path = tmp_path / "run"
    processes = [start_on(2, TWO, address, number, path) for number in (0, 1)]
    values = [free_energies(process) for process in processes]
    assert values[0] == values[1]
    assert len(values[0]) == 3
    for value in values[0]:
        assert value == pytest.approx(one, rel=1e-4)
    assert path.exists()
