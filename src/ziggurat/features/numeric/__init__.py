"""Numeric features: the steps of a chain, the fitted chain, and the moments that it is fitted on."""
