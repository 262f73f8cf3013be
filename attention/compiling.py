"""Code that `torch.compile` leaves out."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def not_compiled(function: Callable[P, T]) -> Callable[P, T]:
    """`torch.compiler.disable`, applied once the compiler is there.

    That decorator imports the compiler where a function is defined: seconds at the start of every
    program, whether it compiles anything or not.
    """

    left_out: list[Callable[P, T]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # Nothing can be compiling before the compiler was imported.
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not left_out:
            left_out.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
        return left_out[0](*args, **kwargs)

    # The mark by which the compiler recognises what it must not look into.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call
