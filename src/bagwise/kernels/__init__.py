"""Fused Triton kernels behind `bagwise.functional`. Nothing here is imported on a machine without CUDA."""
