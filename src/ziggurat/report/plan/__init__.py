"""Plans, drawn: one page per plan, and the comparison of several planners."""
