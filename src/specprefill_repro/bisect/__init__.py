"""Which commit of a server engine made SpecPrefill start or stop: walk.py walks, claim.py says what is tried."""
