"""Networks of latent variables that drive each other without cycles."""
