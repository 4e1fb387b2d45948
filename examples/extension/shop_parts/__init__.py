"""Parts for ziggurat that live outside its package: a model, a block, a sequence encoder and an encoder of ids."""
