"""The config that ``ziggurat init`` drafts: inferred descriptions of logs become commented YAML that can be trained."""
