"""Independent answers for the tests: adaptive-range quadrature, SciPy densities, differences.

Nothing here uses secateur. Densities are NumPy/SciPy functions over the whole real line (or plane):
a positive x is exp(u), an x in (0, 1) is 1/(1 + exp(−u)), a simplex is a softmax, each
with its Jacobian, so that one integrator serves all families.
"""

import numpy as np
from scipy import optimize, special, stats

NATS_IGNORED = 60.0  # e^-60 of the peak: far below the 1e-9 asked for, even over a long tail


def _panels(low, high, panels, order):
    nodes, weights = np.polynomial.legendre.leggauss(order)
    edges = np.linspace(low, high, panels + 1)
    half = np.diff(edges)[:, None] / 2
    middle = (edges[:-1] + edges[1:])[:, None] / 2
    return (middle + half * nodes).ravel(), (half * weights).ravel()


def _bound(log_f, peak, direction):
    """How far along `direction` the unimodal log_f stays within NATS_IGNORED of its peak."""
    floor, step = log_f(peak) - NATS_IGNORED, 1e-12
    while log_f(peak + step * direction) > floor:
        step *= 1.5
    return step


def grid_1d(log_f, start=0.0):
    """Nodes and weights that integrate anything of the width of the log-concave exp(log_f)."""
    peak = optimize.minimize(lambda u: -log_f(u[0]), [start], method="Nelder-Mead").x[0]
    low, high = (peak + sign * _bound(log_f, peak, sign) for sign in (-1.0, 1.0))
    return _panels(low, high, 400, 20)


def log_integral(log_f, start=0.0):
    """ln ∫ exp(log_f(u)) du for a log-concave integrand, by composite Gauss–Legendre."""
    u, weights = grid_1d(log_f, start)
    return special.logsumexp(log_f(u), b=weights)


def log_integral_2d(log_f, start=(0.0, 0.0)):
    """ln ∫∫ exp(log_f(u, v)) du dv for a log-concave integrand."""
    u, v, weights = grid_2d(log_f, start)
    return special.logsumexp(log_f(u, v), b=weights)


def grid_2d(log_f, start=(0.0, 0.0)):
    """Nodes (two arrays) and weights for the plane."""
    options = {"xatol": 1e-6, "fatol": 1e-9, "maxiter": 4000, "maxfev": 4000}
    found = optimize.minimize(lambda z: -log_f(*z), start, method="Nelder-Mead", options=options)
    u_0, v_0 = found.x
    floor = -found.fun - NATS_IGNORED

    # A box on whose whole edge the integrand is negligible; log-concavity settles the outside.
    sides, along = np.array([1e-3] * 4), np.linspace(-1, 1, 201)
    while True:
        left, right, down, up = sides * (-1, 1, -1, 1) + (u_0, u_0, v_0, v_0)
        us = (left + right) / 2 + (right - left) / 2 * along
        vs = (down + up) / 2 + (up - down) / 2 * along
        edges = [log_f(left, vs), log_f(right, vs), log_f(us, down), log_f(us, up)]
        open_sides = np.array([np.max(edge) > floor for edge in edges])
        if not open_sides.any():
            break
        sides = np.where(open_sides, sides * 1.3, sides)
    (u, w_u), (v, w_v) = _panels(left, right, 60, 14), _panels(down, up, 60, 14)
    grid_u, grid_v = np.meshgrid(u, v, indexing="ij")
    return grid_u, grid_v, np.multiply.outer(w_u, w_v)


def normal(mean, variance):
    return lambda u: stats.norm.logpdf(u, mean, np.sqrt(variance))


def laplace(location, scale):
    return lambda u: stats.laplace.logpdf(u, location, scale)


def gamma(shape, rate):
    """Density of u = ln x; the Jacobian is x."""
    return lambda u: shape * (u + np.log(rate)) - rate * np.exp(u) - special.gammaln(shape)


def beta(a, b):
    """Density of u = logit x; the Jacobian is x (1 − x)."""
    return lambda u: a * special.log_expit(u) + b * special.log_expit(-u) - special.betaln(a, b)


def dirichlet(concentration):
    """Density of (u, v) with x = softmax(u, v, 0); the Jacobian is Π x."""
    a = np.asarray(concentration, float)
    constant = special.gammaln(a.sum()) - special.gammaln(a).sum()

    def log_density(u, v):
        peak = np.maximum(np.maximum(u, v), 0)
        total = peak + np.log(np.exp(u - peak) + np.exp(v - peak) + np.exp(-peak))
        return constant + a[0] * u + a[1] * v - a.sum() * total

    return log_density


def multivariate_normal(mean, covariance):
    frozen = stats.multivariate_normal(mean, covariance)
    return lambda u, v: frozen.logpdf(np.stack(np.broadcast_arrays(u, v), -1))


def kl_1d(log_q, log_p, kink=None):
    """KL[q ‖ p] by quadrature; a kink of either density becomes the edge of a panel."""
    u, weights = grid_1d(log_q)
    if kink is not None:
        pieces = [_panels(u.min(), kink, 800, 20), _panels(kink, u.max(), 800, 20)]
        u, weights = (np.concatenate(part) for part in zip(*pieces, strict=True))
    return float(np.sum(weights * np.exp(log_q(u)) * (log_q(u) - log_p(u))))


def kl_2d(log_q, log_p):
    u, v, weights = grid_2d(log_q)
    return float(np.sum(weights * np.exp(log_q(u, v)) * (log_q(u, v) - log_p(u, v))))


def delta_f_1d(log_q, log_p, log_reduced, start=0.0):
    """−ln E_q[p̃/p], the definition."""
    return -log_integral(lambda u: log_q(u) + log_reduced(u) - log_p(u), start)


def delta_f_2d(log_q, log_p, log_reduced, start=(0.0, 0.0)):
    """−ln E_q[p̃/p], the definition, over the plane."""
    return -log_integral_2d(lambda u, v: log_q(u, v) + log_reduced(u, v) - log_p(u, v), start)


def central_difference(f, x, step=1e-5):
    """Gradient of a scalar function of one array, to about step²."""
    x = np.asarray(x, float)
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        shift = np.zeros_like(x)
        shift[index] = step
        gradient[index] = (float(f(x + shift)) - float(f(x - shift))) / (2 * step)
    return gradient
