"""A table of functions of which every variant computes the same."""

import torch


def registering(table):
    """Makes a decorator that adds pairs of programs to a table, by name.

    The decorated function has one argument. Its default is a tuple of names: the program, and rewrites of it.
    """

    def rewrites(function):
        first, *others = function.__defaults__[0]
        for other in others:
            pair = (lambda: function(first), lambda other=other: function(other))
            table[f"{function.__name__}: {other} for {first}"] = pair
        return function

    return rewrites


def with_gradients(result, *tensors):
    """A result with its gradients, so that the backward pass is compared as well."""
    return result, *torch.autograd.grad(result.square().mean(), tensors)
