"""Student's t: one-sided tests of a mean and its interval, without scipy."""

import math


def tail(t, freedom):
    """P(T >= t), by Simpson's rule on the angle: t = sqrt(freedom) tan(a) makes the density cos(a)^(freedom - 1)."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    a, b, n = math.atan(t / math.sqrt(freedom)), math.pi / 2, 2000
    h = (b - a) / n
    weights = (1 if i in (0, n) else 4 if i % 2 else 2 for i in range(n + 1))
    return scale * h / 3 * sum(w * max(0.0, math.cos(a + i * h)) ** (freedom - 1) for i, w in enumerate(weights))


LIMITS = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131)  # 97.5 %, by degrees of freedom


def interval(values):
    """The mean and half of its 95 % interval; NaN of one value."""
    if len(values) < 2:
        return values[0], math.nan
    mean, error = mean_and_error(values)
    return mean, LIMITS[min(len(values) - 1, len(LIMITS)) - 1] * error


def mean_and_error(values):
    n = len(values)
    mean = sum(values) / n
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)


def p_below(values, bound):
    """p of the test whose alternative is that the mean lies below the bound."""
    mean, error = mean_and_error(values)
    distance = bound - mean
    return tail(distance / error if error else math.copysign(math.inf, distance), len(values) - 1)


def p_within(values, margin):
    """The larger p of both one-sided tests (TOST): below 0.05, the mean lies within -margin and margin."""
    return max(p_below(values, margin), p_below([-v for v in values], margin))
