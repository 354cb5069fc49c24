"""Publish reports: a small static site in a folder, on GitHub Pages or in a Space of the Hugging Face Hub."""
