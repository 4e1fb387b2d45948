"""Tower modules: (B, F, N) → (B, O, D), the fields of one tower to fewer or narrower ones.

Source: Luo et al., "Disaggregated Multi-Tower", arXiv 2403.00877, section 3.2; that of Wukong is our own addition.
"""
