"""Train a small Bayesian network on real data, then prune it by Bayesian model reduction.

Run by `make demo`. A network of 20 ReLUs predicts from ten measurements of a patient how far
diabetes has progressed a year later (the data set comes with scikit-learn). Mean and variance of
every weight travel through the network, so that its free energy needs no sampling; `fit` minimises
it until it is level. What Bayesian model reduction then favours to remove is removed: promise and
result, compared.
"""

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import secateur as sc
from secateur.free_energy import accuracy

SEED, HIDDEN = 0, 20

console = Console(highlight=False)


def network(params, x):
    """Any JAX function would do."""
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def load():
    """Return training and held-out rows, standardised, and the unit of the target."""
    x, y = load_diabetes(return_X_y=True, scaled=False)
    x, x_new, y, y_new = train_test_split(x, y[:, None], test_size=0.2, random_state=SEED)

    def standardise(values, like):
        return jnp.asarray((values - like.mean(0)) / like.std(0), jnp.float32)

    new = (standardise(x_new, x), standardise(y_new, y))
    return (standardise(x, x), standardise(y, y)), new, float(y.std())


def initial_params(key, inputs):
    """Draw the weights the means start from."""
    key_1, key_2 = jax.random.split(key)
    return {
        "w1": jax.random.normal(key_1, (inputs, HIDDEN)) * (2 / inputs) ** 0.5,
        "b1": jnp.zeros(HIDDEN),
        "w2": jax.random.normal(key_2, (HIDDEN, 1)) * (2 / HIDDEN) ** 0.5,
        "b2": jnp.zeros(1),
    }


forward = sc.propagate(network, "moments")
likelihood = sc.GaussianLikelihood()  # the precision of the noise is inferred with the weights


def free_energy(beliefs, prior, data):
    """Return the free energy at the noise that is best for these beliefs, from one forward pass."""
    x, y = data
    prediction = forward(None, beliefs, x)
    noise = likelihood.update_noise(prediction, y)
    return sc.FreeEnergy(
        complexity_weights=sc.complexity(beliefs, prior),
        complexity_noise=likelihood.noise_complexity(noise),
        accuracy=accuracy(likelihood, noise, prediction, y),
    )


def main():
    """Train, score, prune, compare."""
    data, (x_new, y_new), unit = load()
    model = sc.BayesianModel(network, initial_params(jax.random.key(SEED), data[0].shape[1]))
    console.print(f"Training 241 weights on {len(data[1])} patients.")
    fitted = sc.fit(model, data, key=jax.random.key(SEED))
    console.print(f"Trained for {fitted.epochs} epochs: {fitted.stop_reason}.")
    beliefs, prior, full = fitted.beliefs, fitted.priors, fitted.parts

    scores = sc.prune_scores(beliefs, prior)  # delta_f of each weight; no data needed
    pruned = sc.cut(beliefs, jax.tree.map(lambda delta_f: delta_f > 0, scores))
    reduced = free_energy(pruned, prior, data)
    estimated = sum(jnp.where(s <= 0, s, 0).sum() for s in jax.tree.leaves(scores))

    def error(beliefs):
        return unit * jnp.sqrt(jnp.mean((forward(None, beliefs, x_new).mean - y_new) ** 2))

    before, after = sc.count(beliefs).live, sc.count(pruned).live
    table = Table(title=f"delta_f ≤ 0 for {before - after} of {before} weights: set to exactly 0")
    for heading in ("", "trained", "pruned", "change", "estimated"):
        table.add_column(heading, justify="right" if heading else "left")
    for name in ("complexity_weights", "complexity_noise", "accuracy", "total"):
        a, b = getattr(full, name), getattr(reduced, name)
        label = name.replace("_", " of ").replace("total", "free energy")
        promise = f"{estimated:+.1f}" if name == "total" else ""
        table.add_row(f"{label} (nats)", f"{a:.1f}", f"{b:.1f}", f"{b - a:+.1f}", promise)
    a, b = error(beliefs), error(pruned)
    table.add_row(f"error on {len(y_new)} new patients", f"{a:.1f}", f"{b:.1f}", f"{b - a:+.1f}")
    console.print(table)
    console.print(
        "Lower free energy is better. The estimate adds up the scores of single weights; the "
        "change is that of removing all of them, without retraining. The error is root-mean-square."
    )


if __name__ == "__main__":
    main()
