"""The ops on a GPU: CUDA kernels with the bits of ARITHMETIC.md, and their host."""
