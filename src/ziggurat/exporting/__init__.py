"""From a trained run to a folder that serving, or another runtime, reads."""
