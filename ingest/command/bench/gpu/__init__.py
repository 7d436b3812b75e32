"""`lockstep bench gpu`: what the GPU's kernels and the whole decode step reach, beside the CPU."""
