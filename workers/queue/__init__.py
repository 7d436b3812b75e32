"""RQ workers that run many jobs at once, and the atomic scripts they stand on."""
