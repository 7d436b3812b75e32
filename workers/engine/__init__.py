"""One engine per processor: schedule, forward, sample, emit."""
