"""Searches settings of an experiment that validate better: trials as processes, a study that resumes, a page."""
