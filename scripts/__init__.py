"""Scripts for users: a pretraining script for stock megatron-core, a corpus, the quickstart. Installed with the package."""
