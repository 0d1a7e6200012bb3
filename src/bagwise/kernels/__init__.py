"""Fused Triton kernels behind `bagwise.functional`: each loss and its gradient at the logits, on chip.

`operators` registers them with PyTorch and is the only module that the layers above import. Nothing here is imported
on a machine without CUDA.
"""
