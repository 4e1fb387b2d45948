"""A cluster on one machine: hosts are network namespaces, the links between them are slow, the processes are real."""
