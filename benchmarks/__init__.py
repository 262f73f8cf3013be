"""The engine: plans, runs and stores experiments; knows domains only through their contract."""
