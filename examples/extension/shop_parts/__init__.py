"""Parts for ziggurat that live outside its package, one of each kind."""
