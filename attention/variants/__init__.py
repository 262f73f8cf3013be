"""One file a variant. Found and registered by :mod:`attention.registry`."""
