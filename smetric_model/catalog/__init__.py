"""Hardware and models: facts in ``data/*.toml``, any Hugging Face ``config.json`` by path."""
