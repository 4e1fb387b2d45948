"""The config that ``ziggurat init`` drafts: an inferred description of logs becomes commented YAML that can be trained."""
