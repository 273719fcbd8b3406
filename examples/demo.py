"""Train a small Bayesian network on real data, then prune it by Bayesian model reduction.

Run by `make demo`. A network of 20 ReLUs predicts from ten measurements of a patient how far
diabetes has progressed a year later (the data set comes with scikit-learn). `fit` minimises the
free energy until it is level; `prune` removes every weight whose removal lowers it, trains the rest
again, and repeats until nothing more wants to go.
"""

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import secateur as sc

SEED, HIDDEN = 0, 20

console = Console(highlight=False)


def network(params, x):
    """Any JAX function would do."""
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def initial_params(key, inputs):
    """Draw the weights the means start from."""
    key_1, key_2 = jax.random.split(key)
    return {
        "w1": jax.random.normal(key_1, (inputs, HIDDEN)) * (2 / inputs) ** 0.5,
        "b1": jnp.zeros((1, HIDDEN)),
        "w2": jax.random.normal(key_2, (HIDDEN, 1)) * (2 / HIDDEN) ** 0.5,
        "b2": jnp.zeros((1, 1)),
    }


def rounds_table(pruned):
    """Every round: what was promised, what came."""
    table = Table(title="Each round cuts all weights with delta_f ≤ 0, then trains the rest (nats)")
    for heading in ("round", "cut", "left", "promised", "got", "after training", "free energy"):
        table.add_column(heading, justify="right")
    for number, r in enumerate(pruned.rounds, 1):
        changes = (f"{change:+.1f}" for change in (r.estimated, r.at_once, r.trained))
        note = "" if r.kept else " (undone)"
        table.add_row(
            str(number), str(r.changed), str(r.left), *changes, f"{r.free_energy:.1f}{note}"
        )
    return table


def comparison(fitted, pruned, held_out):
    """Before and after, on data that neither has seen."""
    x, y = held_out
    table = Table(title=f"Before and after, with {len(y)} patients held out")
    for heading in ("", "trained", "pruned"):
        table.add_column(heading, justify="right" if heading else "left")
    both = (fitted, pruned)
    error = [np.sqrt(np.mean(np.square(m.predict(x).mean - y))) for m in both]
    density = [float(np.mean(m.log_density(x, y))) for m in both]
    table.add_row("weights", *(str(m.live_weights) for m in both))
    table.add_row("free energy (nats)", *(f"{m.free_energy:.1f}" for m in both))
    table.add_row("complexity (nats)", *(f"{m.parts.complexity:.1f}" for m in both))
    table.add_row("accuracy (nats)", *(f"{m.parts.accuracy:.1f}" for m in both))
    table.add_row("held-out error (root mean square)", *(f"{e:.1f}" for e in error))
    table.add_row("held-out log-likelihood (nats/row)", *(f"{d:.3f}" for d in density))
    return table


def main():
    """Train, prune, compare."""
    bunch = load_diabetes(scaled=False)
    x, x_new, y, y_new = train_test_split(
        bunch.data, bunch.target[:, None], test_size=0.2, random_state=SEED
    )
    model = sc.BayesianModel(network, initial_params(jax.random.key(SEED), x.shape[1]))
    console.print(f"Training 241 weights on {len(y)} patients.")
    fitted = sc.fit(model, (x, y), key=jax.random.key(SEED))
    console.print(f"Trained for {fitted.epochs} epochs: {fitted.stop_reason}. Pruning.")
    pruned = sc.prune(fitted, (x, y), key=jax.random.key(SEED + 1))
    console.print(rounds_table(pruned))
    console.print(comparison(fitted, pruned, (x_new, y_new)))
    live = np.asarray(pruned.beliefs["w1"].variance) > 0
    names = [name for name, used in zip(bunch.feature_names, live.any(axis=1), strict=True) if used]
    console.print(f"Measurements still in use: {', '.join(names) or 'none'}.")


if __name__ == "__main__":
    main()
