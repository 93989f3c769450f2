"""Labels for documents: latent states, heads that score all labels, their blend, and updates."""
