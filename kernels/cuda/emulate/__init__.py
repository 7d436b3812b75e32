"""The CUDA kernels' own source on the CPU, for machines without a GPU."""
