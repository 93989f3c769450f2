"""Sources of corpora: files in many formats, texts and tables in memory."""
