"""How large a share of a batch is best trained by backprop; no torch here.

A share f of N samples gets true gradients, all get predictions: `mean of true + (1 - f) (mean predicted of the rest - of the
share)`. Let rho be the correlation of a sample's predicted with its true gradient, and r the price of a sample that is
predicted only, over one by backprop. With the best factor of the predictions, and compared with backprop of N samples,

    variance  =  rho^2 + (1 - rho^2) / f            cost  =  f + (1 - f) r

Noise averages out over steps, so what counts is their product: as many times the samples are needed for the same noise. It is
1 at f = 1, and least at f = sqrt((1 - rho^2) r / (rho^2 (1 - r))), which is below 1 if and only if rho^2 > r.
"""

from math import sqrt

SMALLEST_SHARE = 1 / 8
"""Shares are multiples of this: few sizes of parts, and never so few true samples that the fit starves."""


def noise_times_cost(share: float, rho_squared: float, price: float) -> float:
    """Return variance times cost, over that of backprop: prediction pays where it is below 1."""
    return (rho_squared + (1 - rho_squared) / share) * (share + (1 - share) * price)


def best_share(rho_squared: float, price: float) -> float:
    """Return the multiple of `SMALLEST_SHARE` with the least noise times cost: 1 where prediction does not pay."""
    if rho_squared <= price:
        return 1.0
    exact = sqrt((1 - min(rho_squared, 1.0)) * price / (rho_squared * (1 - price)))
    steps = round(1 / SMALLEST_SHARE)
    nearest = {max(1, min(steps, int(exact * steps) + up)) / steps for up in (0, 1)}
    return min(nearest, key=lambda share: noise_times_cost(share, rho_squared, price))
