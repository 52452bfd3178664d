"""What `deploy/` has: images, services, manifests, and a rehearsal."""
