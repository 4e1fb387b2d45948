"""Numeric features: the steps of a chain, the fitted chain, and the moments that steps are fitted on."""
