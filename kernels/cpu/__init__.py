"""The arithmetic in AVX2: C kernels behind one extension, and their typed host."""
