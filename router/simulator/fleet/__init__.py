"""A fleet on virtual time: many simulated nodes on one store, each with a router of its own."""
