"""Whether predicted gradients can pay, given their quality and their cost.

Two limits. Costs are in batches (or samples) of plain backprop.

Noise-limited: batches are small, and training needs samples. A share f of the samples gets a true backward pass; the others
get a prediction of price r, whose correlation with the true gradient of the same sample is rho. The unbiased estimate, mean
over the share (true - predicted) + mean over all (predicted), with predictions scaled best, costs f + (1 - f) r, and has
rho^2 + (1 - rho^2) / f times the variance of backprop with as many samples. A smaller batch trades variance for cost one to
one, so prediction pays if the product of cost and variance is below 1. With the best f, that is the case if rho^2 > r.

Step-limited: batches are far above the gradient noise scale, or a smaller batch saves no time. Then the number of steps matters
and noise does not: prediction pays if a GP step is worth more steps of backprop than it costs.
"""

from math import sqrt

from adagp.errors import OptionError


def relative_cost(share: float, price: float) -> float:
    """Return the cost of a batch with true gradients for a share of its samples, relative to backprop."""
    return share + (1 - share) * price


def relative_variance(rho_squared: float, share: float) -> float:
    """Return the variance of the unbiased estimate, relative to backprop with as many samples."""
    return rho_squared + (1 - rho_squared) / share


def noise_limited_cost(rho_squared: float, price: float, share: float) -> float:
    """Return the cost of an estimate that has the variance of backprop at cost 1. Prediction pays if it is below 1."""
    _check(rho_squared, share)
    return relative_variance(rho_squared, share) * relative_cost(share, price)


def best_share(rho_squared: float, price: float) -> float:
    """Return the share of true gradients at which `noise_limited_cost` is least; 1 (all of them) if prediction never pays."""
    _check(rho_squared, 1.0)
    if price >= rho_squared:
        return 1.0
    return sqrt((1 - rho_squared) * price / (rho_squared * (1 - price)))


def least_noise_limited_cost(rho_squared: float, price: float) -> float:
    """Return `noise_limited_cost` with the best share; its limit if that share is 0."""
    share = best_share(rho_squared, price)
    if share > 0:
        return noise_limited_cost(rho_squared, price, share)
    # The share is 0 if predictions are free or perfect. The minimum in closed form is
    # (sqrt(rho^2 r) + sqrt((1 - rho^2) (1 - r)))^2.
    return (sqrt(rho_squared * price) + sqrt((1 - rho_squared) * (1 - price))) ** 2


def break_even_rho_squared(price: float, share: float) -> float:
    """Return the rho^2 above which prediction pays in the noise-limited regime with this share of true gradients.

    Above 1 if it never pays. For the best share it is the price itself, which is also the limit for shares near 1.
    """
    _check(0.0, share)
    if share == 1:
        return price
    return (1 / share - 1 / relative_cost(share, price)) / (1 / share - 1)


def _check(rho_squared: float, share: float) -> None:
    if not 0 <= rho_squared <= 1:
        raise OptionError(f"rho^2 is {rho_squared}; it must be 0 to 1.")
    if not 0 < share <= 1:
        raise OptionError(f"the share of true gradients is {share}; it must be above 0 and at most 1.")
