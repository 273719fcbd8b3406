"""What pruning is worth on a microcontroller: instructions and flash on an emulated Cortex-M4F.

    python benchmarks/device.py DATA/uci/boston.csv [--models FOLDER] [--json FILE]

Three networks: boston 13-50-1 and a GRU of 16 units on the sine signal, both trained and pruned
here with the default recipe, and a 784-300-100-10 of random weights of which 98 % are cut. Of
each, the unpruned network as a plain dense loop in float32 (written as one would by hand, with
newlib's expf and tanhf in the GRU) and in int8 by our own generator, against what `secateur.export`
makes of the pruned one. On this computer, onnxruntime (batch of 1, called from Python) beside the
same C, called in a loop from C.

Needs "secateur[device,onnx]"; arm-none-eabi-gcc for the GRU's newlib. Trained models are kept in
--models and used again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import secateur as sc
from secateur.exports.c.writing import Source, write_c
from secateur.exports.device import cortex, host
from secateur.exports.device.emulator import Emulator
from secateur.exports.measuring import measure
from secateur.exports.models import model_graph
from secateur.exports.quantise import quantise

KEY = jax.random.key(0)
REPEATS = 200_000


# --- the networks ---------------------------------------------------------------------------------


def boston(path: Path, folder: Path) -> tuple:
    table = pd.read_csv(path).to_numpy()
    x, y = table[:, :-1], table[:, -1:]
    network = sc.networks.Dense(x.shape[1], (50,))
    return *trained("boston", network, (x, y), "moments", folder), x


def gru(folder: Path) -> tuple:
    data = sc.datasets.load("sine")
    network = sc.networks.Gru(data.x.shape[-1], 16)
    return *trained("gru", network, (data.x, data.y), "global", folder), data.x


def trained(name: str, network, data: tuple, inference: str, folder: Path) -> tuple:
    full, pruned = (folder / f"{name}-{kind}.safetensors" for kind in ("full", "pruned"))
    if not pruned.exists():
        model = sc.BayesianModel(network, network.init(KEY), inference=inference)
        fitted = sc.fit(model, data, key=KEY)
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

    full = replace(fitted, beliefs=jax.tree.map(lambda p: sc.Normal(p, jnp.full_like(p, 1e-4)), params))  # fmt: skip
    return full, replace(fitted, beliefs=jax.tree.map(cut, params)), x


# --- what one would write by hand -----------------------------------------------------------------


def floats(name: str, values: np.ndarray) -> str:
    numbers = ", ".join(f"{np.float32(v)!r}f".replace("np.float32(", "").replace(")", "")
                        for v in np.ravel(values))  # fmt: skip
    return f"static const float {name}[{np.size(values)}] = {{{numbers}}};"


def dense_by_hand(params, scaling) -> Source:
    """Loops over all weights, of a dense relu network."""
    layers = [(np.asarray(la["weights"]).T, np.asarray(la["bias"])) for la in params["layers"]]
    shift, scale = (np.asarray(v) for v in (scaling.inputs.shift, scaling.inputs.scale))
    lines = [floats("shift", shift), floats("factor", 1 / scale)]
    for i, (w, b) in enumerate(layers):
        lines += [floats(f"w{i}", w), floats(f"b{i}", b)]
    sizes = [layers[0][0].shape[1], *(len(b) for _, b in layers)]
    lines += [f"static float h{i}[{n}];" for i, n in enumerate(sizes)]
    lines += ["void net_predict(const float *x, float *y) {",
              f"for (int i = 0; i < {sizes[0]}; ++i) h0[i] = (x[i] - shift[i]) * factor[i];"]  # fmt: skip
    for i, (w, _) in enumerate(layers):
        last = i == len(layers) - 1
        lines += [f"for (int o = 0; o < {len(w)}; ++o) {{ float s = b{i}[o];",
                  f"for (int k = 0; k < {w.shape[1]}; ++k) s += w{i}[o * {w.shape[1]} + k] * h{i}[k];",
                  f"h{i + 1}[o] = {'s' if last else 's > 0.0f ? s : 0.0f'}; }}"]  # fmt: skip
    mean, size = (np.ravel(np.asarray(v)) for v in (scaling.targets.shift, scaling.targets.scale))
    lines += [floats("mean", mean), floats("size", size)] if False else []
    body = "\n".join(lines)
    ends = "\n".join([floats("mean", mean), floats("size", size)])
    out = (f"for (int o = 0; o < {sizes[-1]}; ++o) "
           f"y[o] = h{len(layers)}[o] * size[o] + mean[o]; }}")  # fmt: skip
    return Source("void net_predict(const float *x, float *y);", f"{ends}\n{body}\n{out}\n", "net",
                  "by hand", outputs=sizes[-1])  # fmt: skip


def gru_by_hand(params, scaling) -> Source:
    """Loops over all weights, with the C library's functions."""
    gates, readout = params["gates"], params["readout"]
    d, n = np.shape(gates["reset"]["inputs"])
    lines = ["float expf(float); float tanhf(float);"]
    for name, gate in gates.items():
        lines += [floats(f"w_{name}", np.asarray(gate["inputs"]).T),
                  floats(f"u_{name}", np.asarray(gate["state"]).T), floats(f"b_{name}", gate["bias"])]  # fmt: skip
    lines += [floats("w", readout["weights"]), floats("b", readout["bias"]),
              "void net_init(float *h) { for (int i = 0; i < %d; ++i) h[i] = 0.0f; }" % n,  # noqa: UP031
              "static float gate(const float *w, const float *u, float s, const float *x, const float *h) {",
              f"for (int k = 0; k < {d}; ++k) s += w[k] * x[k];",
              f"for (int k = 0; k < {n}; ++k) s += u[k] * h[k]; return s; }}",
              "void net_predict(float *h, const float *x, float *y) {",
              f"float r[{n}], z[{n}], rh[{n}]; float s = b[0];",
              f"for (int i = 0; i < {n}; ++i) {{",
              f"r[i] = 1.0f / (1.0f + expf(-gate(w_reset + i * {d}, u_reset + i * {n}, b_reset[i], x, h)));",
              f"z[i] = 1.0f / (1.0f + expf(-gate(w_update + i * {d}, u_update + i * {n}, b_update[i], x, h)));",
              "rh[i] = r[i] * h[i]; }",
              f"for (int i = 0; i < {n}; ++i) {{",
              f"const float c = tanhf(gate(w_candidate + i * {d}, u_candidate + i * {n}, b_candidate[i], x, rh));",
              "h[i] = (1.0f - z[i]) * c + z[i] * h[i]; }",
              f"for (int i = 0; i < {n}; ++i) s += w[i] * h[i];",
              f"y[0] = s * {np.float32(np.ravel(scaling.targets.scale)[0])}f + "
              f"{np.float32(np.ravel(scaling.targets.shift)[0])}f; }}"]  # fmt: skip
    return Source("void net_init(float *h); void net_predict(float *h, const float *x, float *y);",
                  "\n".join(lines), "net", "by hand", state_elements=n, state_bytes=4 * n)  # fmt: skip


# --- measuring ------------------------------------------------------------------------------------


def on_device(source: Source, frames: np.ndarray, optimise: str, libraries: tuple = ()) -> dict:
    """Flash, RAM, instructions and outputs; with newlib's share of the flash where it is used."""
    if not libraries:
        found = measure(source, frames, optimise=optimise)
        flash = found.flash_bytes
    else:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "net.c").write_text(source.source)
            made = cortex.compile_object(folder / "net.c", folder, compiler="gcc", optimise="-O2")
            elf = cortex.link([made], folder, compiler="gcc", libraries=libraries)
            machine, flash = Emulator(elf), cortex.sizes(made).flash
            state, counts, outputs = np.zeros(256, np.float32), [], []
            machine.call("net_init", state)
            for frame in frames.reshape(len(frames), -1):
                y = np.zeros(1, np.float32)
                run = machine.call("net_predict", state, np.ascontiguousarray(frame, np.float32), y)
                counts.append(run.instructions)
                outputs.append(y)
            return {"flash": flash, "ram": cortex.sizes(made).ram + source.state_bytes,
                    "instructions": round(float(np.mean(counts))), "outputs": np.stack(outputs)}  # fmt: skip
    return {"flash": flash, "ram": found.ram_bytes + source.state_bytes,
            "instructions": found.instructions, "outputs": found.outputs}  # fmt: skip


def on_host(source: Source, row: np.ndarray) -> float:
    """Seconds per call in a loop in C; the input changes, so that nothing can be left out."""
    state = f"static {source.name}_state state; {source.name}_init(&state);" if source.state_elements else ""  # fmt: skip
    argument = "&state, " if source.state_elements else ""
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
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        sc.export(model, path, inputs=inputs)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    feed = {session.get_inputs()[0].name: np.asarray(row, np.float32)[None]}
    outputs = [session.get_outputs()[0].name]
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(2000):
            session.run(outputs, feed)
        best = min(best, (time.perf_counter() - start) / 2000)
    return best


def compare(name: str, full, pruned, rows: np.ndarray, by_hand: Source, libraries: tuple = ()) -> dict:  # fmt: skip
    small = sc.compact(pruned)
    rows = np.asarray(rows, np.float32)
    graph_full = model_graph(full, rows)
    frames = (rows[0] if graph_full.by_frame else rows)[:32]
    plug_in = graph_full.run(rows[:1, :32] if graph_full.by_frame else rows[:32])
    results = {"dense float loop": on_device(by_hand, frames, "speed", libraries)}
    gap = np.abs(results["dense float loop"]["outputs"] - plug_in.reshape(len(frames), -1)).max()
    print(f"{name}: the dense loop is {gap:.1e} from the model")
    wide = model_graph(full, rows, input_factors=False)
    results["dense int8 loop"] = on_device(
        write_c(quantise(wide, "int8", most_noise=0).graph, "net", straight=False), frames, "speed"
    )
    sources = {}
    graph = model_graph(small, rows)
    for label, mode, optimise in (
        ("ours, size", None, "size"), ("ours, size, weights16", "weights16", "size"),
        ("ours, size, int8", "int8", "size"), ("ours, speed", None, "speed"),
    ):  # fmt: skip
        model = graph if mode in (None, "weights16") else model_graph(small, rows, input_factors=False)  # fmt: skip
        steps = graph.graph if mode is None else quantise(model, mode).graph
        sources[label] = write_c(steps, "net", optimise=optimise)
        results[label] = on_device(sources[label], frames, optimise)
        results[label]["style"] = sources[label].style
    dense = results["dense float loop"]
    for label, found in results.items():
        found.pop("outputs")
        found["fewer instructions"] = dense["instructions"] / found["instructions"]
        found["less flash"] = dense["flash"] / found["flash"]
        print(f"  {label:24s} {found['instructions']:9,d} instructions ({found['fewer instructions']:6.1f}×)"
              f" {found['flash']:9,d} B flash ({found['less flash']:6.1f}×) {found['ram']:6,d} B RAM"
              f"  {found.get('style', '')}")  # fmt: skip
    row = rows[0]
    times = {"onnxruntime, unpruned": onnxruntime_seconds(full, row, rows),
             "onnxruntime, compacted": onnxruntime_seconds(small, row, rows)}  # fmt: skip
    frame_count = len(row) if graph.by_frame else 1
    times = {k: v / frame_count for k, v in times.items()}
    times["C, ours, speed"] = on_host(sources["ours, speed"], row[0] if graph.by_frame else row)
    per_frame_row = row[:1] if graph.by_frame else row
    if graph.by_frame:
        times["onnxruntime, unpruned, one frame"] = onnxruntime_seconds(full, per_frame_row, rows)
    for label, seconds in times.items():
        ratio = seconds / times["C, ours, speed"]
        print(f"  host: {label:34s} {seconds * 1e6:9.3f} µs ({ratio:.1f}× ours)")
    weights = sum(int(np.size(q.mean)) for q in jax.tree.leaves(full.beliefs, is_leaf=lambda q: isinstance(q, sc.Normal)))  # fmt: skip
    print(
        f"  {weights} → {small.live_weights} weights, {1 - small.live_weights / weights:.1%} pruned"
    )
    return {"device": results, "host_seconds": times, "weights": [weights, small.live_weights]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("boston", type=Path)
    parser.add_argument("--models", type=Path, default=Path("build/device-models"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=["boston", "gru", "large"])
    options = parser.parse_args()
    options.models.mkdir(parents=True, exist_ok=True)
    found = {}
    if options.only in (None, "boston"):
        full, pruned, x = boston(options.boston, options.models)
        params = sc.beliefs.mean(full.beliefs)
        found["boston"] = compare("boston", full, pruned, x, dense_by_hand(params, full.scaling))
    if options.only in (None, "large"):
        full, pruned, x = large()
        params = sc.beliefs.mean(full.beliefs)
        found["large"] = compare("784-300-100-10", full, pruned, x, dense_by_hand(params, full.scaling))  # fmt: skip
    if options.only in (None, "gru"):
        full, pruned, x = gru(options.models)
        params = sc.beliefs.mean(full.beliefs)
        found["gru"] = compare("GRU-16", full, pruned, x, gru_by_hand(params, full.scaling), ("-lm", "-lc"))  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
