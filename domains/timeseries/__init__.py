"""Classification of multivariate time series (UEA archive)."""
