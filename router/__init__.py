"""batchEngine: reads requests from the streams, decides where they run, hands them over."""
