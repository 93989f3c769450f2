"""Factors behind exchangeable real-valued views of documents, images or people."""
