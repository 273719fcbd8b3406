"""What pruning is worth on a microcontroller: instructions and flash on an emulated Cortex-M4F.

    python benchmarks/device.py [--models FOLDER] [--json FILE]

Three networks: boston 13-50-1 with the paper's recipe and a GRU of 16 units on the sine signal with
the default one, both trained and pruned here, and a 784-300-100-10 of random weights of which 98 %
are cut. Of each, the unpruned network as a plain dense loop in float32 (written as one would by
hand, with newlib's expf and tanhf in the GRU, whose own flash is not counted) and in int8 by our
own generator, against what `secateur.export` makes of the pruned one. On this computer, onnxruntime
(batch of 1, called from Python) beside the same C, called in a loop from C.

Needs "secateur[device,onnx]"; arm-none-eabi-gcc for the GRU's newlib. Trained models are kept in
--models and used again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import secateur as sc
from secateur.beliefs import mean_weights
from secateur.exports import to_onnx
from secateur.exports.c.source_writer import Source, write_c
from secateur.exports.device import cortex
from secateur.exports.device.emulator import Emulator
from secateur.exports.device.measurement import measure_source
from secateur.exports.model_graph import make_model_graph
from secateur.exports.quantisation import quantise_graph

# C is compiled for this computer by a module of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import c_host as host

KEY = jax.random.key(0)
REPEATS = 200_000


# --- the networks ---------------------------------------------------------------------------------


def boston(folder: Path) -> tuple:
    data = sc.datasets.load("boston")
    network = sc.networks.Dense(data.x.shape[1], (50,))
    how = {"recipe": "paper", "batch_size": 16}
    return *trained("boston", network, (data.x, data.y), "moments", folder, **how), data.x


def gru(folder: Path) -> tuple:
    data = sc.datasets.load("sine")
    network = sc.networks.Gru(data.x.shape[-1], 16)
    return *trained("gru", network, (data.x, data.y), "global", folder), data.x


def trained(name: str, network, data: tuple, inference: str, folder: Path, **how) -> tuple:
    full, pruned = (folder / f"{name}-{kind}.safetensors" for kind in ("full", "pruned"))
    if not pruned.exists():
        model = sc.BayesianModel(network, network.init(KEY), inference=inference)
        fitted = sc.fit(model, data, key=KEY, **how)
        sc.save(fitted, full)
        sc.save(sc.prune(fitted, data, key=KEY), pruned)
    return sc.load(full), sc.load(pruned)


def large() -> tuple:
    """Random weights of which the smallest 98 % are cut, as training on digits would leave them."""
    network = sc.networks.Dense(784, (300, 100), 10)
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(64, 784)).astype(np.float32)
    model = sc.BayesianModel(network, network.init(KEY))
    y = np.asarray(network(model.params, jnp.asarray(x)))
    fitted = sc.fit(model, (x, y), key=KEY, epochs=1, progress=False)
    params = network.init(KEY)
    everything = np.concatenate([np.abs(p).ravel() for p in jax.tree.leaves(params)])
    threshold = np.quantile(everything, 0.98)

    def cut(p):
        alive = np.abs(p) > threshold
        return sc.Normal(jnp.where(alive, p, 0.0), jnp.where(alive, 1e-4, 0.0))

    whole = jax.tree.map(lambda p: sc.Normal(p, jnp.full_like(p, 1e-4)), params)
    full = replace(fitted, beliefs=whole)
    return full, replace(fitted, beliefs=jax.tree.map(cut, params)), x


# --- what one would write by hand -----------------------------------------------------------------


def floats(name: str, values: np.ndarray) -> str:
    numbers = ", ".join(f"{float(np.float32(v))!r}f" for v in np.ravel(values))
    return f"static const float {name}[{np.size(values)}] = {{{numbers}}};"


DENSE = """
    for (int o = 0; o < {outputs}; ++o) {{
        float s = b{i}[o];
        for (int k = 0; k < {inputs}; ++k) s += w{i}[o * {inputs} + k] * h{i}[k];
        h{next}[o] = {value};
    }}
"""


def dense_by_hand(params, scaling) -> Source:
    """Loops over all weights, of a dense relu network."""
    layers = [(np.asarray(la["weights"]).T, np.asarray(la["bias"])) for la in params["layers"]]
    outputs = len(layers[-1][1])
    mean, size = np.zeros(outputs), np.ones(outputs)
    if scaling.targets is not None:
        mean, size = scaling.targets.shift, scaling.targets.scale
    affine = [scaling.inputs.shift, 1 / scaling.inputs.scale, mean, size]
    lines = [floats(n, v) for n, v in zip(("shift", "factor", "mean", "size"), affine, strict=True)]
    sizes = [layers[0][0].shape[1], *(len(b) for _, b in layers)]
    lines += [f"static float h{i}[{n}];" for i, n in enumerate(sizes)]
    body = f"for (int i = 0; i < {sizes[0]}; ++i) h0[i] = (x[i] - shift[i]) * factor[i];"
    for i, (w, b) in enumerate(layers):
        lines += [floats(f"w{i}", w), floats(f"b{i}", b)]
        value = "s" if i == len(layers) - 1 else "s > 0.0f ? s : 0.0f"
        body += DENSE.format(i=i, next=i + 1, outputs=len(b), inputs=w.shape[1], value=value)
    last = len(layers)
    body += f"for (int o = 0; o < {sizes[-1]}; ++o) y[o] = h{last}[o] * size[o] + mean[o];"
    head = "void net_predict(const float *x, float *y)"
    text = "\n".join([f"{head};", *lines, f"{head} {{\n{body}\n}}", ""])
    return Source(f"{head};", text, "net", "by hand", outputs=sizes[-1])


GRU = """
float expf(float);
float tanhf(float);
void net_init(float *h);
void net_predict(float *h, const float *x, float *y);

void net_init(float *h)
{{
    for (int i = 0; i < {n}; ++i) h[i] = 0.0f;
}}

static float gate(const float *w, const float *u, float s, const float *x, const float *h)
{{
    for (int k = 0; k < {d}; ++k) s += w[k] * x[k];
    for (int k = 0; k < {n}; ++k) s += u[k] * h[k];
    return s;
}}

void net_predict(float *h, const float *x, float *y)
{{
    float z[{n}], rh[{n}], s = b[0];
    for (int i = 0; i < {n}; ++i) {{
        const float r = gate(w_reset + i * {d}, u_reset + i * {n}, b_reset[i], x, h);
        const float u = gate(w_update + i * {d}, u_update + i * {n}, b_update[i], x, h);
        z[i] = 1.0f / (1.0f + expf(-u));
        rh[i] = h[i] / (1.0f + expf(-r));
    }}
    for (int i = 0; i < {n}; ++i) {{
        const float c = gate(w_candidate + i * {d}, u_candidate + i * {n}, b_candidate[i], x, rh);
        h[i] = (1.0f - z[i]) * tanhf(c) + z[i] * h[i];
    }}
    for (int i = 0; i < {n}; ++i) s += w[i] * h[i];
    y[0] = s * size[0] + mean[0];
}}
"""


def gru_by_hand(params, scaling) -> Source:
    """Loops over all weights, with the C library's functions."""
    gates, readout = params["gates"], params["readout"]
    d, n = np.shape(gates["reset"]["inputs"])
    shift, scale = (np.ravel(np.asarray(v)) for v in (scaling.inputs.shift, scaling.inputs.scale))
    lines = []
    for name, gate in gates.items():  # the inputs' standardisation is multiplied out beforehand
        weights = np.asarray(gate["inputs"]).T / scale
        lines += [
            floats(f"w_{name}", weights),
            floats(f"u_{name}", np.asarray(gate["state"]).T),
            floats(f"b_{name}", np.asarray(gate["bias"]) - weights @ shift),
        ]
    lines += [
        floats("w", readout["weights"]), floats("b", readout["bias"]),
        floats("mean", scaling.targets.shift), floats("size", scaling.targets.scale),
    ]  # fmt: skip
    text = "\n".join([*lines, GRU.format(n=n, d=d)])
    return Source("", text, "net", "by hand", state_elements=n, state_bytes=4 * n)


# --- measuring ------------------------------------------------------------------------------------


def on_device(source: Source, frames: np.ndarray, optimise: str) -> dict:
    """Flash, RAM and instructions of our own C."""
    found = measure_source(source, frames, optimise=optimise)
    return {
        "flash": found.flash_bytes, "ram": found.ram_bytes + source.state_bytes,
        "instructions": found.instructions, "outputs": found.outputs,
    }  # fmt: skip


def with_newlib(source: Source, frames: np.ndarray) -> dict:
    """The same of C that calls the library, whose code is not counted as flash."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "net.c").write_text(source.source)
        made = cortex.compile_object(folder / "net.c", folder, compiler="gcc", optimise="-O2")
        libraries = ["-lm", "-lc"] if source.state_elements else []
        elf = cortex.link([made], folder, compiler="gcc", libraries=libraries)
        machine, sizes = Emulator(elf), cortex.sizes(made)
        state, counts, outputs = [], [], []
        if source.state_elements:
            state = [np.zeros(source.state_elements, np.float32)]
            machine.call("net_init", *state)
        for frame in frames.reshape(len(frames), -1):
            y = np.zeros(source.outputs, np.float32)
            run = machine.call("net_predict", *state, np.ascontiguousarray(frame, np.float32), y)
            counts.append(run.instructions)
            outputs.append(y)
    return {
        "flash": sizes.flash, "ram": sizes.ram + source.state_bytes,
        "instructions": round(float(np.mean(counts))), "outputs": np.stack(outputs),
    }  # fmt: skip


def on_host(source: Source, row: np.ndarray) -> float:
    """Seconds per call in a loop in C; the input changes, so that nothing can be left out."""
    state, argument = "", ""
    if source.state_elements:
        state = f"static {source.name}_state state; {source.name}_init(&state);"
        argument = "&state, "
    driver = f"""
#include "{source.name}.h"
double run(float *x, float *y, int times);
double run(float *x, float *y, int times)
{{
    double sum = 0.0;
    {state}
    for (int i = 0; i < times; ++i) {{
        x[0] += 1e-6f;
        {source.name}_predict({argument}x, y);
        sum += (double)y[0];
    }}
    return sum;
}}
"""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / f"{source.name}.h").write_text(source.header)
        (folder / f"{source.name}.c").write_text(source.source)
        (folder / "driver.c").write_text(driver)
        library = host.build_library([folder / "driver.c", folder / f"{source.name}.c"], folder)
        x, y = np.array(row, np.float32).ravel(), np.zeros(max(source.outputs, 1), np.float32)
        best = np.inf
        for _ in range(5):
            start = time.perf_counter()
            library.call("run", x, y, REPEATS)
            best = min(best, (time.perf_counter() - start) / REPEATS)
    return best


def onnxruntime_seconds(model, row: np.ndarray, inputs) -> float:
    """Seconds per call, of the network at its posterior means, as the C is."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    content = to_onnx(model, inputs=inputs, uncertainty=False)
    session = onnxruntime.InferenceSession(content, options)
    feed = {session.get_inputs()[0].name: np.asarray(row, np.float32)[None]}
    outputs = [session.get_outputs()[0].name]
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(2000):
            session.run(outputs, feed)
        best = min(best, (time.perf_counter() - start) / 2000)
    return best


VARIANTS = {
    "ours, size": (None, "size"),
    "ours, size, weights16": ("weights16", "size"),
    "ours, size, int8": ("int8", "size"),
    "ours, speed": (None, "speed"),
}


def compare(name: str, full, pruned, rows: np.ndarray, by_hand: Source) -> dict:
    small = sc.compact(pruned)
    rows = np.asarray(rows, np.float32)
    dense = make_model_graph(full, rows)
    some = rows[:1, :32] if dense.by_frame else rows[:32]
    frames = some.reshape(-1, *dense.graph.inputs[0].shape)
    results = {"dense float loop": with_newlib(by_hand, frames)}
    gap = np.abs(results["dense float loop"]["outputs"] - dense.run(some).reshape(len(frames), -1))
    print(f"{name}: the dense loop by hand is within {gap.max():.1e} of the model")
    wide = quantise_graph(make_model_graph(full, rows, input_factors=False), "int8", most_noise=0)
    integers = write_c(wide.graph, "net", straight=False)
    results["dense int8 loop"] = on_device(integers, frames, "speed")
    sources = {}
    for label, (mode, optimise) in VARIANTS.items():
        model = make_model_graph(small, rows, input_factors=mode in (None, "weights16"))
        steps = model.graph if mode is None else quantise_graph(model, mode).graph
        sources[label] = write_c(steps, "net", optimise=optimise)
        results[label] = on_device(sources[label], frames, optimise)
        results[label]["style"] = sources[label].style
    first = results["dense float loop"]
    for label, found in results.items():
        found.pop("outputs")
        found["fewer instructions"] = first["instructions"] / found["instructions"]
        found["less flash"] = first["flash"] / found["flash"]
        print(
            f"  {label:22s} {found['instructions']:9,d} instructions "
            f"({found['fewer instructions']:5.1f} times fewer) {found['flash']:9,d} B flash "
            f"({found['less flash']:5.1f} times less) {found['ram']:6,d} B RAM "
            f"{found.get('style', '')}"
        )
    row = rows[0, :1] if dense.by_frame else rows[0]  # one frame
    times = {
        "onnxruntime, unpruned": onnxruntime_seconds(full, row, rows),
        "onnxruntime, compacted": onnxruntime_seconds(small, row, rows),
        "C, ours, speed": on_host(sources["ours, speed"], row),
    }
    for label, seconds in times.items():
        ratio = seconds / times["C, ours, speed"]
        print(f"  host: {label:24s} {seconds * 1e6:9.3f} µs ({ratio:.1f} times ours)")
    before, after = (sc.count(m.beliefs) for m in (full, small))
    print(f"  {before.live} → {after.live} weights, {1 - after.live / before.live:.1%} pruned")
    return {"device": results, "host_seconds": times, "weights": [before.live, after.live]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=Path, default=Path("build/device-models"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=["boston", "gru", "large"])
    options = parser.parse_args()
    options.models.mkdir(parents=True, exist_ok=True)
    networks = {
        "boston": (lambda: boston(options.models), dense_by_hand),
        "large": (large, dense_by_hand),
        "gru": (lambda: gru(options.models), gru_by_hand),
    }
    found = {}
    for name, (make, by_hand) in networks.items():
        if options.only in (None, name):
            full, pruned, rows = make()
            params = mean_weights(full.beliefs)
            found[name] = compare(name, full, pruned, rows, by_hand(params, full.scaling))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
