"""What runs the models. Every engine does the same five things behind one method; see interface.py."""
