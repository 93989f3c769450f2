"""What blocks of documents, rows and sequences add to moments, and what the total sums mean."""
