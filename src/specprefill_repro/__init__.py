"""Does SpecPrefill shorten time to first token on this machine, by how much, at what price, and if not, why not?"""

__version__ = "0.1.0"
