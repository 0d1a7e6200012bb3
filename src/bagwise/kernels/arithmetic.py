"""Powers and logarithms of two and reciprocals, as the one instruction each that NVIDIA GPUs have for them.

Triton's own `exp2`, `log2` and division also serve denormal numbers and the last bit, which costs up to twenty
instructions. Here a denormal is a zero, and the relative error is about 2^-22.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

# Triton's interpreter runs kernels on a CPU, for tests, and knows no assembly.
_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def exp2(x):
    """2^x."""
    if _INTERPRETED:
        return tl.exp2(x)
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def log2(x):
    """log2(x)."""
    if _INTERPRETED:
        return tl.log2(x)
    return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def reciprocal(x):
    """1 / x."""
    if _INTERPRETED:
        return 1.0 / x
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
