"""/v1/jobs: requests that outlive their client."""
