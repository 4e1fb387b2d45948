"""Emulates a cluster on one machine: hosts are network namespaces with slow links, and the processes are real."""
